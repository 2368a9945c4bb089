"""A call of an array operator: its arguments by kind, then the operator's own typing rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casync.compll import tree, typed
from casync.compll.diagnostics import fail
from casync.compll.functions import ELEMENT_FUNCTIONS
from casync.compll.operators import OPERATORS, Operator
from casync.compll.types import FLOAT, INT32, Array, Element, Length, Scalar

if TYPE_CHECKING:
    from casync.compll.expressions import Expressions

__all__ = ["check_operator"]


def check_operator(expressions: Expressions, node: tree.Call) -> typed.Apply:
    operator = OPERATORS[node.function]
    if operator.rule is None:
        places = {"concat": "concat-place", "extract": "extract-place", "aggregate": "aggregate-place"}
        raise fail(places[operator.name], node, f"`{operator.name}` cannot stand here", operator.usage)
    call = _Call(expressions, node, operator)
    types = operator.rule(call)
    local = call.local or any(argument.local for argument in call.arguments)
    drawing = None
    if operator.name == "sample":
        expressions.scope.private = local = True
        drawing = typed.Drawing(expressions.file.sites[node.span.start], shared=False)
    return typed.Apply(
        type=types[0], operator=operator.name, arguments=tuple(call.arguments), types=types, span=node.span,
        local=local, drawing=drawing,
    )  # fmt: skip


class _Call:
    """The OperatorCall that rules see."""

    def __init__(self, expressions: Expressions, node: tree.Call, operator: Operator) -> None:
        self.expressions, self.node, self.operator = expressions, node, operator
        self.arguments: list[typed.Expression] = []
        self.local = False
        self._array_nodes: list[tree.Expression] = []
        self._function_node: tree.Expression | None = None
        for kind, argument in zip(self._kinds(), node.arguments, strict=True):
            self.arguments.append(self._argument(kind, argument))

    def _kinds(self) -> list[str]:
        """One kind for each argument that is there."""
        wanted, given = list(self.operator.parameters), len(self.node.arguments)
        if wanted[0] == "arrays":
            wanted = ["array"] * max(1, given - len(wanted) + 1) + wanted[1:]
        least = sum(not kind.endswith("?") for kind in wanted)
        if not least <= given <= len(wanted):
            raise fail(
                "argument-count", self.node, f"`{self.operator.name}` got {given} arguments", self.operator.usage
            )
        return [kind.rstrip("?") for kind in wanted[:given]]

    def _argument(self, kind: str, node: tree.Expression) -> typed.Expression:
        if kind == "function":
            self._function_node = node
            return self._function(node)
        if kind == "int":
            return self.expressions.whole(node)
        found = self.expressions.check(node)
        if (kind == "scalar") != isinstance(found.type, Scalar):
            what = "one value" if kind == "scalar" else "an array"
            raise fail("type", node, f"a {found.type} where {what} is meant", self.operator.usage)
        if kind != "scalar":
            self._array_nodes.append(node)
        if kind == "int_array" and found.type.element.floating:
            raise fail("type", node, f"a {found.type} where integers are meant", self.operator.usage)
        return found

    def _function(self, node: tree.Expression) -> typed.FunctionName:
        name = node.name if isinstance(node, tree.Name) else ""
        functions = self.expressions.file.functions
        if name not in functions and name not in ELEMENT_FUNCTIONS:
            known = ", ".join([*functions, "smaller", "greater", "add", "maxAbs"])
            raise fail("undefined-function", node, "not a function", f"the name of a function: {known}, ...")
        function = functions.get(name)
        if function is not None:
            self.expressions.file.used.add(name)
            self.local |= self.expressions.local_function(function, node)
        return typed.FunctionName(type=Scalar(FLOAT), name=name, function=function, span=node.span)

    # --- OperatorCall

    @property
    def arrays(self) -> tuple[Array, ...]:
        return tuple(argument.type for argument in self.arguments if isinstance(argument.type, Array))

    @property
    def scalars(self) -> tuple[typed.Expression, ...]:
        return tuple(
            argument
            for argument in self.arguments
            if isinstance(argument.type, Scalar) and not isinstance(argument, typed.FunctionName)
        )

    @property
    def _name(self) -> typed.FunctionName:
        return next(argument for argument in self.arguments if isinstance(argument, typed.FunctionName))

    def results(self, elements: tuple[Element, ...]) -> tuple[Element, ...]:
        name = self._name
        if name.function is not None:
            wanted, results = len(name.function.arguments), name.function.results
        else:
            known = ELEMENT_FUNCTIONS[name.name]
            common = FLOAT if any(element.floating for element in elements) else INT32
            wanted, results = known.arity, (known.gives or common,)
        if wanted != len(elements):
            assert self._function_node is not None
            raise fail(
                "function-argument",
                self._function_node,
                f"`{name.name}` takes {wanted} value{'s' * (wanted != 1)}, and gets one of each of {len(elements)} "
                f"array{'s' * (len(elements) != 1)}",
                self.operator.usage,
            )
        return results

    def reduces(self, element: Element) -> None:
        name = self._name
        assert self._function_node is not None
        if name.function is None:
            if ELEMENT_FUNCTIONS[name.name].neutral is None:
                message = f"`{name.name}` does not make one value of two here"
                expected = "smaller, greater, add, maxAbs or a function of your own"
                raise fail("function-argument", self._function_node, message, expected)
            return
        types = [argument.type.element for argument in name.function.arguments]
        if types != [element, element] or name.function.results != (element,):
            raise fail(
                "function-argument",
                self._function_node,
                f"`{name.name}` does not make one {element} of two",
                f"{element} {name.name}({element} a, {element} b)",
            )
        if self.operator.name == "reduce" and not self.scalars:
            raise fail(
                "reduce-start",
                self.node,
                "a function of your own has no known neutral value",
                f"reduce(G, {name.name}, start), where {name.name}(start, x) is x",
            )

    def same_length(self, index: int, expected: Length, *others: Length) -> None:
        length = self.arrays[index].length
        if length not in (expected, *others):
            wanted = " or ".join(str(known) for known in dict.fromkeys((expected, *others)))
            got = "another number of elements" if str(length) == wanted else str(length)
            raise fail("length", self._array_nodes[index], f"an array of {got}", f"an array of {wanted}")

    def length(self, scalar: typed.Expression) -> Length:
        return self.expressions.length(scalar)

    def counted(self) -> Length:
        return self.expressions.file.counted()

    def matrix(self, index: int) -> tuple[Length, Length]:
        found = self.arrays[index].matrix
        if found is None:
            raise fail("type", self._array_nodes[index], f"a {self.arrays[index]}", "a matrix, as of matrix(G)")
        return found

"""Types of expressions: from syntax to typed tree, with every conversion made explicit."""

from __future__ import annotations

from collections.abc import Callable

from casync.compll import tree, typed
from casync.compll.constants import NUMBER_LIMIT, evaluate, number
from casync.compll.diagnostics import fail
from casync.compll.functions import CONSTANTS, ELEMENT_FUNCTIONS, READ_ONLY
from casync.compll.operator_call import check_operator
from casync.compll.operators import OPERATORS
from casync.compll.scope import Scope, Variable
from casync.compll.types import FLOAT, INT32, UINT1, UNIT, Array, Element, Length, Scalar, fixed, known

__all__ = ["Expressions"]

_WIDTHS = {"uint": (1, 2, 4, 8, 16), "int": (1, 2, 4, 8, 16, 32)}
_WHOLE = frozenset({"%", "<<", ">>", "&", "|", "^", "~"})
_TRUTH = frozenset({"&&", "||", "!"})
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})


class Expressions:
    """Checks the expressions of one function."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.file = scope.file

    # --- what the caller wants

    def check(self, node: tree.Expression) -> typed.Expression:
        method: Callable[[tree.Expression], typed.Expression] = getattr(self, f"_{type(node).__name__.lower()}")
        return method(node)

    def scalar(self, node: tree.Expression) -> typed.Expression:
        found = self.check(node)
        if not isinstance(found.type, Scalar):
            raise fail("type", node, f"{_a(found)} where one value is meant", "a scalar; map(...) goes over an array")
        return found

    def condition(self, node: tree.Expression) -> typed.Expression:
        found = self.check(node)
        if not isinstance(found.type, Scalar):
            raise fail("condition", node, f"{_a(found)} as a condition", "a scalar; reduce(...) makes one of an array")
        return found

    def whole(self, node: tree.Expression) -> typed.Expression:
        """An int32: index, count or length."""
        return self.convert(self.scalar(node), INT32)

    def convert(self, found: typed.Expression, element: Element) -> typed.Expression:
        """`found` as `element`; an array element by element."""
        if found.type.element == element:
            return found
        if isinstance(found.type, Scalar):
            type_: Scalar | Array = Scalar(element)
        else:
            type_ = Array(element, found.type.length, found.type.matrix, found.type.chunk)
        text = found.text
        if text is not None and (element != INT32 or found.type.element.floating):
            text = f"({element}){text}"  # else every value stays what it is
        return typed.Convert(type=type_, operand=found, span=found.span, local=found.local, text=text)

    def element(self, node: tree.TypeName) -> Element:
        if node.width is None:
            return known(node.element)
        width = Expressions(Scope(self.file, "constant", params=self.file.params_name and "params")).whole(node.width)
        allowed = _WIDTHS[node.element]
        if width.text is None:
            raise fail("width", node.width, "a width that is not known beforehand", "an expression of parameters")
        for value in evaluate(width, self.file.parameters):
            if value not in allowed:
                raise fail("width", node.width, f"a width of {value:g} bits", f"one of {', '.join(map(str, allowed))}")
        return Element(f"{node.element}<{width.text}>", node.element, None, width)

    # --- leaves

    def _number(self, node: tree.Number) -> typed.Expression:
        value = number(node)
        element = FLOAT if isinstance(value, float) else INT32
        if abs(value) > NUMBER_LIMIT[element.kind]:
            raise fail("number", node, f"{node.text} is too large for {element}", "a value that fits")
        return typed.Constant(type=Scalar(element), value=value, span=node.span, text=repr(value))

    def _name(self, node: tree.Name) -> typed.Expression:
        variable = self.scope.find(node.name)
        if variable is not None:
            return self._read(variable, node)
        if node.name in CONSTANTS:
            return typed.Constant(type=Scalar(FLOAT), value=CONSTANTS[node.name], span=node.span, text=node.name)
        if node.name in READ_ONLY:
            known_value = READ_ONLY[node.name]
            text = None if known_value.local else node.name
            if known_value.local:
                self._refuse_local(node, f"`{node.name}`")
            return typed.Read(
                type=Scalar(known_value.element), name=node.name, storage="read-only", span=node.span,
                local=known_value.local, text=text,
            )  # fmt: skip
        if node.name == self.scope.params:
            raise fail("type", node, "the parameter block is no value", "one of its fields, as in params.x")
        what = "a value; functions are arguments of operators" if node.name in self.file.functions else (
            f"a variable ({self.scope.variable_names}), a parameter (params.x) or one of {', '.join(READ_ONLY)}"
        )  # fmt: skip
        raise fail("undefined-name", node, f"undefined name `{node.name}`", what)

    def _read(self, variable: Variable, node: tree.Node) -> typed.Expression:
        if variable.name in self.scope.payloads:
            raise fail("extract-place", node, "the payload is no value", f"extract({variable.name})")
        in_file = self.file.variables.get(variable.name) is variable
        self.scope.used.add(variable.name)
        if in_file:
            self.scope.reads.add(variable.name)
            self.file.used.add(variable.name)
        if self.scope.role == "constant" and variable.storage != "constant":
            raise fail("constant", node, f"`{variable.name}` changes", "parameters, shape and constants")
        if self.scope.role == "function" and in_file:
            if variable.stars:
                type_: Scalar | Array = Array(variable.element, self.file.counted())
            else:
                type_ = Scalar(variable.element)
            return typed.Read(type=type_, name=variable.name, storage=variable.storage, span=node.span)
        self.available(variable, node)
        assert variable.type is not None
        return typed.Read(
            type=variable.type, name=variable.name, storage=variable.storage, span=node.span,
            local=variable.local, text=variable.text,
        )  # fmt: skip

    def available(self, variable: Variable, node: tree.Node) -> None:
        """Check that the variable has a value here, and one that may be read here."""
        if variable.foreign:
            raise fail(
                "decode-reads-local",
                node,
                f"decode needs `{variable.name}`, whose value differs between the ranks that encode",
                f"concat(..., {variable.name}) in encode, and extract it here",
            )
        if variable.type is None:
            raise fail("unassigned", node, f"`{variable.name}` has no value here", "an assignment on every way here")
        if variable.inherited:
            self.scope.kept.add(variable.name)

    def _refuse_local(self, node: tree.Node, what: str) -> None:
        if self.scope.role in ("decode", "merge"):
            raise fail("decode-reads-local", node, f"{what} differs between ranks", "the same decoding on every rank")
        if self.scope.role == "constant":
            raise fail("constant", node, f"{what} differs between ranks", "parameters, shape and constants")

    def _member(self, node: tree.Member) -> typed.Expression:
        if isinstance(node.of, tree.Name) and node.of.name == self.scope.params:
            return self._parameter(node)
        if isinstance(node.of, tree.Name) and node.of.name == self.scope.output and node.name == "size":
            return typed.SizeOf(type=Scalar(INT32), length=UNIT, span=node.span, text=UNIT.text)
        of = self.check(node.of)
        if isinstance(of.type, Array) and node.name == "size":
            length = of.type.length
        elif isinstance(of.type, Array) and node.name == "count" and of.type.chunk is not None:
            length = of.type.chunk
        else:
            raise fail("member", node, f"{_a(of)} has no `{node.name}`", "array.size, chunks(...).count or params.NAME")
        text = length.text if length.sized else None
        local = of.local and not length.sized
        return typed.SizeOf(
            type=Scalar(INT32), length=length, array=of, chunks=node.name == "count", span=node.span,
            local=local, text=text,
        )  # fmt: skip

    def _parameter(self, node: tree.Member) -> typed.Expression:
        parameter = self.file.parameters.get(node.name)
        if parameter is None:
            names = ", ".join(f"params.{name}" for name in self.file.parameters)
            raise fail("undefined-name", node, f"no parameter `{node.name}`", names or "a field of the param block")
        self.file.used.add(f"params.{node.name}")
        return typed.Read(
            type=Scalar(parameter.element), name=node.name, storage="parameter", span=node.span,
            text=f"params.{node.name}",
        )  # fmt: skip

    def _index(self, node: tree.Index) -> typed.Expression:
        array, index = self.check(node.of), self.check(node.at)
        if not isinstance(array.type, Array):
            raise fail("index", node, f"{_a(array)} has no elements", "an array before `[`")
        if not isinstance(index.type, Scalar):
            raise fail("index", node.at, f"{_a(index)} as an index", "one value; gather(array, indices) takes several")
        index = self.convert(index, INT32)
        local = array.local or index.local
        return typed.Pick(type=Scalar(array.type.element), array=array, index=index, span=node.span, local=local)

    # --- C operators

    def _unary(self, node: tree.Unary) -> typed.Expression:
        operand = self.scalar(node.operand)
        if node.operator == "!":
            return self._operation("!", (operand,), UINT1, node)
        if node.operator == "~" and operand.type.element.floating:
            raise fail("type", node, "`~` of a float", "integers")
        element = operand.type.element.arithmetic
        operand = self.convert(operand, element)
        if node.operator == "+":
            return operand
        return self._operation("neg" if node.operator == "-" else "~", (operand,), element, node)

    def _binary(self, node: tree.Binary) -> typed.Expression:
        left, right = self.scalar(node.left), self.scalar(node.right)
        name = node.operator
        if name in _TRUTH:
            return self._operation(name, (left, right), UINT1, node)
        common = self._common(left, right)
        if name in _WHOLE and common.floating:
            at = node.left if left.type.element.floating else node.right
            raise fail("type", at, f"`{name}` of a float", "integers; (int32) makes one")
        operands = (self.convert(left, common), self.convert(right, common))
        return self._operation(name, operands, UINT1 if name in _COMPARISONS else common, node)

    def _choice(self, node: tree.Choice) -> typed.Expression:
        condition = self.condition(node.condition)
        yes, no = self.scalar(node.yes), self.scalar(node.no)
        common = yes.type.element if yes.type.element == no.type.element else self._common(yes, no)
        yes, no = self.convert(yes, common), self.convert(no, common)
        parts = (condition, yes, no)
        text = None if None in [part.text for part in parts] else f"({condition.text} ? {yes.text} : {no.text})"
        return typed.Choice(
            type=Scalar(common), condition=condition, yes=yes, no=no, span=node.span,
            local=any(part.local for part in parts), text=text,
        )  # fmt: skip

    def _cast(self, node: tree.Cast) -> typed.Expression:
        if node.type.stars:
            raise fail("type", node.type, "a cast to an array", "a cast of one value; map(...) converts an array")
        return self.convert(self.scalar(node.operand), self.element(node.type))

    def _common(self, *operands: typed.Expression) -> Element:
        return FLOAT if any(operand.type.element.floating for operand in operands) else INT32

    def _operation(
        self, name: str, operands: tuple[typed.Expression, ...], element: Element, node: tree.Node
    ) -> typed.Expression:
        texts = [operand.text for operand in operands]
        text = None
        if None not in texts:
            infix = len(texts) == 2 and not name.isalnum()
            text = f"({texts[0]} {name} {texts[1]})" if infix else f"{name}({', '.join(map(str, texts))})"
        local = any(operand.local for operand in operands)
        return typed.Operation(
            type=Scalar(element), name=name, operands=operands, span=node.span, local=local, text=text
        )

    # --- calls and draws

    def _call(self, node: tree.Call) -> typed.Expression:
        if node.function in self.file.functions:
            return self._call_function(self.file.functions[node.function], node)
        if node.function in ELEMENT_FUNCTIONS:
            return self._element_function(node)
        if node.function in OPERATORS:
            if self.scope.role in ("function", "constant"):
                raise fail(
                    "statement-place", node, f"`{node.function}` goes over arrays", "functions work on single values; "
                    "operators stand in encode, decode, merge and init",
                )  # fmt: skip
            return check_operator(self, node)
        raise fail(
            "undefined-function",
            node,
            f"no function `{node.function}`",
            "a function defined above, an element function or an operator (docs/compll.md)",
        )

    def _call_function(self, function: typed.Function, node: tree.Call) -> typed.Expression:
        self.file.used.add(function.name)
        if len(function.results) != 1:
            raise fail("result-count", node, f"`{function.name}` has {len(function.results)} results", "map, or one")
        self._count(node, len(function.arguments))
        arguments = tuple(
            self.convert(self.scalar(argument), wanted.type.element)
            for argument, wanted in zip(node.arguments, function.arguments, strict=True)
        )
        local = self.local_function(function, node) or any(argument.local for argument in arguments)
        return typed.CallFunction(
            type=Scalar(function.results[0]), function=function, arguments=arguments, span=node.span, local=local
        )

    def local_function(self, function: typed.Function, node: tree.Node) -> bool:
        """Whether its result may differ between ranks; what it reads must have a value here."""
        local = function.private
        if function.private:
            self.scope.private = True
            self._refuse_local(node, f"what `{function.name}` draws")
        for name in sorted(function.reads):
            variable = self.file.variables[name]
            self.scope.reads.add(name)
            if self.scope.role != "function":
                if self.scope.role == "constant" and variable.storage != "constant":
                    raise fail("constant", node, f"`{function.name}` reads `{name}`", "parameters, shape and constants")
                self.available(variable, node)
                local |= variable.local
        return local

    def _element_function(self, node: tree.Call) -> typed.Expression:
        function = ELEMENT_FUNCTIONS[node.function]
        self._count(node, function.arity)
        if node.function == "floor" and (drawn := self._stochastic(node.arguments[0])) is not None:
            return drawn
        operands = tuple(self.scalar(argument) for argument in node.arguments)
        common = self._common(*operands)
        arguments = tuple(self.convert(operand, function.takes or common) for operand in operands)
        return self._operation(node.function, arguments, function.gives or common, node)

    def _stochastic(self, node: tree.Expression) -> typed.Expression | None:
        """floor(z + random<float>(0, 1)) as one thing: added in float32, the draw would round up large z."""
        if not isinstance(node, tree.Binary) or node.operator != "+" or not isinstance(node.right, tree.Draw):
            return None
        draw = self._draw(node.right)
        assert isinstance(draw, typed.Draw)
        if draw.type != Scalar(FLOAT) or (_constant(draw.low), _constant(draw.high)) != (0, 1):
            return None
        operand = self.convert(self.scalar(node.left), FLOAT)
        return typed.StochasticFloor(
            type=Scalar(FLOAT), drawing=draw.drawing, operand=operand, span=node.span, local=operand.local or draw.local
        )

    def _draw(self, node: tree.Draw) -> typed.Expression:
        if node.type.stars or len(node.arguments) != 2:
            raise fail("draw", node, "not a draw of one number", f"{node.function}<float>(0, 1), or another type, a, b")
        element = self.element(node.type)
        shared = node.function == "shared_random"
        low, high = (self.convert(self.scalar(argument), element.arithmetic) for argument in node.arguments)
        if not shared:
            self.scope.private = True
            self._refuse_local(node, "a draw from the rank's own stream (random)")
        drawing = typed.Drawing(self.file.sites[node.span.start], shared)
        local = not shared or low.local or high.local
        return typed.Draw(type=Scalar(element), drawing=drawing, low=low, high=high, span=node.span, local=local)

    def _count(self, node: tree.Call, wanted: int) -> None:
        if len(node.arguments) != wanted:
            raise fail(
                "argument-count",
                node,
                f"`{node.function}` got {len(node.arguments)} arguments",
                f"{wanted} argument{'s' * (wanted != 1)}",
            )

    def length(self, scalar: typed.Expression) -> Length:
        """The length that a number stands for: array.size is that array's, a fixed value itself."""
        if isinstance(scalar, typed.SizeOf):
            return scalar.length
        return fixed(scalar.text, scalar) if scalar.text is not None else self.file.counted()


def _constant(found: typed.Expression) -> float | None:
    inner = found.operand if isinstance(found, typed.Convert) else found
    return inner.value if isinstance(inner, typed.Constant) else None


def _a(found: typed.Expression) -> str:
    return f"an array ({found.type})" if isinstance(found.type, Array) else f"a {found.type}"

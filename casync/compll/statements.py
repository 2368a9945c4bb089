"""Statements: what a function's body assigns, and where each kind of statement may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from casync.compll import tree, typed
from casync.compll.diagnostics import fail
from casync.compll.expressions import Expressions
from casync.compll.scope import Scope, Variable
from casync.compll.types import UINT8, UNIT, Array, Element, Length, Scalar, Type

__all__ = ["AGGREGATIONS", "Body", "Payload"]

AGGREGATIONS = ("sum", "mean", "max", "satsum")


@dataclass
class Payload:
    """The items that encode packs, for extract; None until encode is checked."""

    items: tuple[typed.Item, ...] | None = None


@dataclass
class Body:
    """Checks the body of one function. `payload` is shared between encode, decode and merge."""

    scope: Scope
    payload: Payload
    results: tuple[Element, ...] | None = None  # of a function over values
    whole_unit: bool = True
    packed: tuple[typed.Item, ...] | None = None  # by this function
    spans: dict[str, tree.Span] = field(default_factory=dict)
    depth: int = 0

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.scope)

    def check(self, statements: Sequence[tree.Statement]) -> tuple[typed.Statement, ...]:
        checked = [self._statement(statement) for statement in statements]
        return tuple(statement for statement in checked if statement is not None)

    def finish(self) -> None:
        for name, span in self.spans.items():
            if name not in self.scope.used:
                raise fail("unused-name", span, f"`{name}` is never read", "a use of it, or no such name")

    def _statement(self, node: tree.Statement) -> typed.Statement | None:
        if isinstance(node, tree.Declare):
            return self._declare(node)
        if isinstance(node, tree.Assign):
            return self._assign(node, node.targets, node.value)
        if isinstance(node, tree.If):
            return self._if(node)
        if isinstance(node, tree.Return):
            return self._return(node)
        assert isinstance(node, tree.CallStatement)
        return self._aggregate(node)

    # --- declarations and assignments

    def _declare(self, node: tree.Declare) -> typed.Statement | None:
        if node.value is None:
            for variable in node.variables:
                self._new(variable)
            return None
        # C's scope would begin before the value; here a name cannot stand in its own first value.
        value = self._value(node.value)
        return self._store_results(node, [(self._new(variable), variable) for variable in node.variables], value)

    def _new(self, node: tree.Variable) -> Variable:
        assert isinstance(node.type, tree.TypeName)
        if node.type.stars > 2:
            raise fail("type", node.type, "more than two stars", "a value, an array (*) or a matrix (**)")
        variable = Variable(node.name, "variable", self.expressions.element(node.type), node.type.stars, node.span)
        self.scope.declare(variable)
        self.spans.setdefault(node.name, node.span)
        return variable

    def _assign(
        self, node: tree.Assign, targets: tuple[tree.Target, ...], value_node: tree.Expression
    ) -> typed.Statement:
        if isinstance(value_node, tree.Call) and value_node.function == "concat":
            return self._concat(node, targets, value_node)
        if len(targets) == 1 and targets[0].at is not None:
            return self._store(node, targets[0], targets[0].at, value_node)
        value = self._value(value_node)
        places: list[tuple[Variable, tree.Node]] = []
        for target in targets:
            if target.at is not None:
                raise fail("result-count", target, "an element among several results", "a variable here")
            places.append((self._place(target), target))
        return self._store_results(node, places, value)

    def _value(self, node: tree.Expression) -> typed.Expression:
        if isinstance(node, tree.Call) and node.function == "extract":
            return self._extract(node)
        return self.expressions.check(node)

    def _place(self, target: tree.Target) -> Variable:
        """Return the variable that may be assigned by this name here."""
        variable = self.scope.find(target.name)
        if variable is None:
            expected = f"one of {self.scope.variable_names}, or a declaration: float {target.name} = ..."
            raise fail("undefined-name", target, f"undefined name `{target.name}`", expected)
        if target.name in self.scope.payloads:
            raise fail("concat-value", target, "the payload is set by concat alone", f"{target.name} = concat(...)")
        in_file = self.scope.file.variables.get(target.name) is variable
        if variable.storage in ("constant", "argument") or (self.scope.role == "function" and in_file):
            what = "an argument" if variable.storage == "argument" else f"a {variable.storage}"
            where = " inside a function" if self.scope.role == "function" and in_file else ""
            raise fail("not-assignable", target, f"`{target.name}` is {what}{where}", "a variable of this function")
        return variable

    def _store_results(
        self, node: tree.Node, places: Sequence[tuple[Variable, tree.Node]], value: typed.Expression
    ) -> typed.Statement:
        types = value.types if isinstance(value, typed.Apply) else (value.type,)
        several = isinstance(value, typed.Apply) and value.operator not in ("map", "extract")
        if len(places) > len(types) or (len(places) < len(types) and not several):
            raise fail(
                "result-count",
                node,
                f"{len(places)} name{'s' * (len(places) != 1)} for {len(types)} result{'s' * (len(types) != 1)}",
                f"{len(types)} name{'s' * (len(types) != 1)} left of `=`",
            )
        targets = []
        for (variable, at), type_ in zip(places, types, strict=False):
            if isinstance(value, typed.Apply) and value.operator == "extract":
                if variable.element != type_.element:
                    raise self._disagree(at, variable, type_)
                # All that was packed must be named, whether this function has a use for it or not.
                self.scope.used.add(variable.name)
                self.scope.file.used.add(variable.name)
            targets.append(self._set(variable, type_, value, at))
        return typed.Assign(targets=tuple(targets), value=value, span=node.span)

    def _set(self, variable: Variable, type_: Type, value: typed.Expression, at: tree.Node) -> typed.Target:
        if isinstance(type_, Array) and variable.stars == 1:
            type_ = Array(type_.element, type_.length, chunk=type_.chunk)  # a matrix as an array, row after row
        stars = 0 if isinstance(type_, Scalar) else type_.stars
        if stars != variable.stars:
            if isinstance(value, typed.Apply) and value.operator == "extract":
                raise self._disagree(at, variable, type_)
            wanted = f"{variable.element}{'*' * variable.stars}"
            raise fail("type", at, f"`{variable.name}` is {wanted}, and gets {type_}", f"a value that is {wanted}")
        if isinstance(type_, Scalar):
            set_type: Type = Scalar(variable.element)
        else:
            set_type = Array(variable.element, type_.length, type_.matrix, type_.chunk)
        if variable.declared is not None:
            _same_shape(variable, set_type, at)
            set_type = variable.declared
        local = value.local or self.scope.branch_local
        variable.type, variable.local = set_type, local
        variable.foreign = variable.inherited = False
        converted = self.expressions.convert(value, variable.element)
        variable.text = None if self.scope.branch_local else converted.text
        if variable.storage == "state":
            self._state_set(variable, at)
            variable.text = None
        return typed.Target(variable.name, variable.storage, set_type)

    def _state_set(self, variable: Variable, at: tree.Node) -> None:
        per_unit = isinstance(variable.declared, Array) and variable.declared.length == UNIT
        if self.scope.role in ("encode", "encode_merged", "decode") and not self.whole_unit and not per_unit:
            raise fail(
                "state",
                at,
                f"state `{variable.name}` belongs to the tensor, and {self.scope.role} runs for each unit",
                "state of [size], init(), or `unit = whole`",
            )

    def _store(
        self, node: tree.Assign, target: tree.Target, at: tree.Expression, value_node: tree.Expression
    ) -> typed.Statement:
        variable = self._place(target)
        self.expressions.available(variable, target)
        if not isinstance(variable.type, Array):
            raise fail("index", target, f"`{target.name}` has no elements", "an array before `[`")
        index, value = self.expressions.check(at), self.expressions.check(value_node)
        if index.type.element.floating:
            raise fail("index", at, f"a {index.type} as an index", "integers")
        if isinstance(value.type, Array) and not (isinstance(index.type, Array) and _length(index) == _length(value)):
            raise fail("length", value_node, f"an array of {_length(value)}", "one value for each index, or a scalar")
        variable.local |= index.local or value.local or self.scope.branch_local
        if variable.storage == "state":
            self._state_set(variable, target)
        stored = typed.Target(variable.name, variable.storage, variable.type)
        return typed.Store(
            target=stored, index=index, value=self.expressions.convert(value, variable.element), span=node.span
        )

    # --- if and return

    def _return(self, node: tree.Return) -> typed.Statement:
        if self.results is None:
            raise fail("statement-place", node, "`return` here", "an assignment to the output; functions return")
        if len(node.values) != len(self.results):
            raise fail(
                "return-values",
                node,
                f"{len(node.values)} value{'s' * (len(node.values) != 1)} returned",
                f"{len(self.results)}: {', '.join(map(str, self.results))}",
            )
        values = tuple(
            self.expressions.convert(self.expressions.scalar(value), element)
            for value, element in zip(node.values, self.results, strict=True)
        )
        return typed.Return(values=values, span=node.span)

    def _if(self, node: tree.If) -> typed.Statement:
        condition = self.expressions.condition(node.condition)
        outside = self.scope.branch_local
        self.scope.branch_local |= condition.local
        self.depth += 1
        before = self.scope.snapshot()
        then = self.check(node.then)
        after_then = self.scope.snapshot()
        self.scope.restore(before)
        otherwise = self.check(node.otherwise)
        self.scope.variables = {name: v for name, v in self.scope.variables.items() if id(v) in before}
        self.scope.merge(after_then)
        self.depth -= 1
        self.scope.branch_local = outside
        return typed.If(condition=condition, then=then, otherwise=otherwise, span=node.span)

    # --- the payload and the rounds

    def _concat(self, node: tree.Assign, targets: tuple[tree.Target, ...], call: tree.Call) -> typed.Statement:
        output = self.scope.output
        if output not in self.scope.payloads or self.depth or self.packed is not None or len(targets) != 1:
            expected = "one concat, at the top level of encode, to its output"
            raise fail("concat-place", call, "concat cannot stand here", expected)
        if targets[0].name != output or targets[0].at is not None:
            raise fail("concat-place", targets[0], "concat packs the payload", f"{output} = concat(...)")
        if not call.arguments:
            raise fail("concat-value", call, "an empty payload", "at least one value")
        arguments = tuple(self.expressions.check(argument) for argument in call.arguments)
        counts: set[Length] = set()
        items = []
        for argument in arguments:
            type_ = argument.type
            if not isinstance(type_, Array) or type_.length.sized:
                items.append(typed.Item(_stored(type_), False))
                continue
            if type_.matrix is not None:
                message = "a matrix whose sides a receiver cannot know"
                raise fail("concat-value", argument.span, message, "sides that shape, parameters and step decide")
            items.append(typed.Item(_stored(type_), type_.length not in counts))
            counts.add(type_.length)
        self.packed = tuple(items)
        self.scope.used.add(output)
        payload = Array(UINT8, self.scope.file.counted())
        value = typed.Apply(
            type=payload, operator="concat", arguments=arguments, types=(payload,), span=call.span,
            local=any(argument.local for argument in arguments),
        )  # fmt: skip
        target = typed.Target(targets[0].name, "output", payload)
        return typed.Assign(targets=(target,), value=value, span=node.span)

    def _extract(self, call: tree.Call) -> typed.Expression:
        argument = call.arguments[0] if len(call.arguments) == 1 else None
        inputs = self.scope.payloads - {self.scope.output}
        if (
            not isinstance(argument, tree.Name)
            or argument.name not in inputs
            or self.depth
            or self.payload.items is None
        ):
            raise fail("extract-place", call, "nothing to extract here", "extract(compressed), in decode or merge")
        self.scope.used.add(argument.name)
        types = tuple(item.type for item in self.payload.items)
        name = typed.Read(
            type=Array(UINT8, self.scope.file.counted()), name=argument.name, storage="argument", span=argument.span
        )
        return typed.Apply(type=types[0], operator="extract", arguments=(name,), types=types, span=call.span)

    def _disagree(self, at: tree.Node, variable: Variable, packed: Type) -> Exception:
        stars = 0 if isinstance(packed, Scalar) else packed.stars
        return fail(
            "extract-agreement",
            at,
            f"`{variable.name}` is {variable.element}{'*' * variable.stars} where encode packed {packed}",
            f"{packed.element}{'*' * stars} {variable.name}",
        )

    def _aggregate(self, node: tree.CallStatement) -> typed.Statement:
        call = node.call
        if call.function != "aggregate":
            raise fail("statement-place", node, "a call whose result goes nowhere", "an assignment: x = f(...)")
        if self.scope.role not in ("encode", "init") or self.depth:
            where = "inside an `if`" if self.depth else f"in {self.scope.role}"
            raise fail("aggregate-place", node, f"aggregate {where}", "the top level of encode or init")
        if self.packed is not None:
            raise fail("aggregate-place", node, "aggregate after concat", "it before concat, which ends the last round")
        names = [argument.name if isinstance(argument, tree.Name) else None for argument in call.arguments]
        if len(names) != 2 or names[0] is None or names[1] not in AGGREGATIONS:
            expected = f"aggregate(variable, {' | '.join(AGGREGATIONS)})"
            raise fail("aggregate-value", call, "not a variable and an operation", expected)
        value = self.expressions.check(call.arguments[0])
        variable = self.scope.find(names[0])
        if variable is None or variable.storage in ("argument", "constant") or not isinstance(value, typed.Read):
            raise fail("aggregate-value", call.arguments[0], "not a variable", "a variable of this file")
        if isinstance(value.type, Array) and not value.type.length.sized:
            raise fail(
                "aggregate-value", call.arguments[0], f"`{names[0]}` has a length that differs between ranks",
                "an array whose length the unit, parameters and step decide",
            )  # fmt: skip
        if names[1] == "satsum" and value.type.element.floating:
            raise fail("aggregate-value", call.arguments[1], "a saturating sum of floats", "integers, or sum")
        variable.local, variable.text = False, None
        return typed.Aggregate(variable=names[0], type=value.type, operation=str(names[1]), span=node.span)


def _length(found: typed.Expression) -> Length:
    assert isinstance(found.type, Array)
    return found.type.length


def _stored(type_: Type) -> Type:
    """Return the type without its view in chunks, which is nothing in memory."""
    return Array(type_.element, type_.length, type_.matrix) if isinstance(type_, Array) else type_


def _same_shape(variable: Variable, got: Type, at: tree.Node) -> None:
    declared = variable.declared
    if isinstance(declared, Array) and isinstance(got, Array):
        if declared.length != got.length or declared.matrix != got.matrix:
            raise fail("length", at, f"`{variable.name}` is {declared}, and gets {got}", f"{declared}")

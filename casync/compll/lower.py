"""From the typed tree to a graph of values: what is left of a file once operators are fused.

`lower` runs encode and decode symbolically over one unit. An array is never a memory: it is the value of one of its
elements, as an expression of the gradient's element (`lanes`), so a map costs nothing until something consumes it. What
consumes arrays are reductions and the payload. Each has a *level*: 0 if it needs the gradient alone, one more than the
reductions it depends on. All consumers of a level share one pass over the gradient, and there are as many passes as
levels: one for onebit (two sums, a count and the packed bits), two for terngrad (the range, then the codes).

What cannot be lowered yet raises a `NotAvailableError` that names it and its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from casync.compll import typed
from casync.compll.types import UNIT, Array, Element
from casync.errors import NotAvailableError

__all__ = ["Graph", "Lowered", "PayloadItem", "Value", "lower", "widths"]

FLOAT, INT, BIT = "float", "int", "bit"


@dataclass(frozen=True, eq=False)
class Value:
    """One operation. `lanes`: of each element, else of the unit. `level`: how many passes end before it is known."""

    op: str
    operands: tuple[Value, ...]
    kind: str
    lanes: bool
    data: Any
    level: int
    number: int


@dataclass
class Graph:
    """Makes values, each once."""

    _known: dict[Any, Value] = field(default_factory=dict)

    def make(self, op: str, operands: Sequence[Value] = (), kind: str = FLOAT, data: Any = None,
             lanes: bool | None = None) -> Value:  # fmt: skip
        key = (op, tuple(v.number for v in operands), kind, data, repr(data), lanes)
        if key not in self._known:
            level = max((v.level for v in operands), default=0)
            across = any(v.lanes for v in operands) if lanes is None else lanes
            if op == "reduce":
                level, across = level + 1, False
            self._known[key] = Value(op, tuple(operands), kind, across, data, level, len(self._known))
        return self._known[key]


@dataclass(frozen=True)
class PayloadItem:
    """A scalar or, with `value.lanes`, an array of the unit's length, in elements of `bits` bits."""

    value: Value
    bits: int
    floating: bool


@dataclass(frozen=True)
class Lowered:
    """`payload`: what encode packs, in order. `decoded`: the value of an element, from `field` and `code` values whose
    data is the item's place in the payload.
    """

    payload: tuple[PayloadItem, ...]
    decoded: Value


def widths(codec: typed.Codec) -> list[dict[str, int]]:
    """The choices of those parameters that decide widths: code is generated for each. All accept a set of values."""
    names = sorted({name for element in _elements(codec) for name in _parameters(element.width)})
    choices: list[dict[str, int]] = [{}]
    for name in names:
        (parameter,) = (p for p in codec.parameters if p.name == name)
        if parameter.interval or not parameter.accepted:
            raise NotAvailableError(
                f"{codec.path}: parameter {name} decides a width, so code is generated for each of its values: say in "
                "{} which it may have"
            )
        choices = [{**chosen, name: int(value)} for chosen in choices for value in parameter.accepted]
    return choices


def lower(codec: typed.Codec, chosen: Mapping[str, int]) -> Lowered:
    """One choice of `widths(codec)`."""
    return _Lowering(codec, chosen).run()


def _elements(codec: typed.Codec) -> list[Element]:
    return [item.type.element for item in codec.payload if item.type.element.bits is None]


def _parameters(expression: Any) -> set[str]:
    if isinstance(expression, typed.Read):
        return {expression.name} if expression.storage == "parameter" else set()
    parts: tuple[Any, ...] = getattr(expression, "operands", ())
    for name in ("operand", "condition", "yes", "no"):
        if hasattr(expression, name):
            parts += (getattr(expression, name),)
    return set().union(*map(_parameters, parts))


Environment = dict[str, Value]

_FIXED_POINT = (-32768, 32767)  # what stochastic_floor can hold
_CONDITIONS = frozenset({"<", ">", "<=", ">=", "==", "!=", "&&", "||", "!"})
_LOGIC = frozenset({"&&", "||", "!"})


class _Lowering:
    def __init__(self, codec: typed.Codec, chosen: Mapping[str, int]) -> None:
        self._codec = codec
        self._chosen = chosen
        self._graph = Graph()
        self._globals: Environment = {}
        self._payload: list[PayloadItem] = []

    def run(self) -> Lowered:
        codec = self._codec
        for what, there in (("init", codec.init), ("merge", codec.merge), ("encode_merged", codec.encode_merged)):
            if there is not None:
                raise self._not_yet(f"`{what}`")
        if codec.states:
            raise self._not_yet(f"state (`{codec.states[0].name}`)")
        properties = codec.properties
        if properties.applies is not None or properties.optimizer != "any" or properties.feedback == "own":
            raise self._not_yet("`applies`, `optimizer = momentum` or `feedback = own`")
        if codec.decode is None:
            raise self._not_yet("a file without decode")
        if len(codec.encode.rounds) > 1 or properties.rounds != ("reencode",):
            raise self._not_yet(f"aggregation {', '.join(properties.rounds)}")
        gradient = self._graph.make("gradient", lanes=True)
        self._block(codec.encode.rounds[0].statements, {codec.encode.inputs[0]: gradient})
        self._globals = {}
        outputs: Environment = {}
        self._block(codec.decode.rounds[0].statements, outputs)
        assert codec.decode.output is not None
        return Lowered(tuple(self._payload), outputs[codec.decode.output])

    def _not_yet(self, what: str, at: typed.Expression | typed.Statement | None = None) -> NotAvailableError:
        place = self._codec.path if at is None else f"{self._codec.path}:{at.span.line}:{at.span.column}"
        return NotAvailableError(f"{place}: no code can be generated for {what} yet")

    # --- statements

    def _block(self, statements: Sequence[typed.Statement], variables: Environment) -> None:
        """Statements of encode and decode, in which variables change; functions have _function."""
        for statement in statements:
            if isinstance(statement, typed.Assign):
                self._assign(statement, variables)
            elif isinstance(statement, typed.If):
                self._if(statement, variables)
            else:
                raise self._not_yet(type(statement).__name__.lower(), statement)

    def _assign(self, statement: typed.Assign, variables: Environment) -> None:
        value = statement.value
        if isinstance(value, typed.Apply) and value.operator == "concat":
            self._concat(value, variables)
            return
        results = self._results(value, variables)
        types = _result_elements(value)
        for target, result, from_type in zip(statement.targets, results, types, strict=False):
            converted = self._convert(result, from_type, target.type.element)
            (self._globals if target.storage == "global" else variables)[target.name] = converted

    def _if(self, statement: typed.If, variables: Environment) -> None:
        condition = self._condition(self._value(statement.condition, variables))
        before = dict(self._globals)
        sides = []
        for block in (statement.then, statement.otherwise):
            self._globals, inside = dict(before), dict(variables)
            self._block(block, inside)
            sides.append((inside, self._globals))
        (yes, yes_globals), (no, no_globals) = sides
        for target, a, b in ((variables, yes, no), (before, yes_globals, no_globals)):
            for name in a.keys() & b.keys():
                target[name] = a[name] if a[name] is b[name] else self._choose(condition, a[name], b[name])
        self._globals = before

    def _concat(self, call: typed.Apply, variables: Environment) -> None:
        for argument, item in zip(call.arguments, self._codec.payload, strict=True):
            value = self._value(argument, variables)
            if isinstance(item.type, Array) and (item.type.length != UNIT or item.type.element.kind == "int"):
                raise self._not_yet(f"a payload with {item.type}", argument)
            self._payload.append(PayloadItem(value, self._bits(item.type.element), item.type.element.floating))

    def _bits(self, element: Element) -> int:
        if element.bits is not None:
            return element.bits
        width = self._value(element.width, {})
        assert width.op == "constant"
        return int(width.data)

    # --- functions

    def _call(self, function: typed.Function, arguments: Sequence[Value], at: typed.Expression) -> tuple[Value, ...]:
        local = {argument.name: value for argument, value in zip(function.arguments, arguments, strict=True)}
        return self._function(function.body, local, at)

    def _function(self, body: Sequence[typed.Statement], local: Environment, at: typed.Expression) -> tuple[Value, ...]:
        """A path ends at its return; the paths of an `if` are chosen between."""
        for position, statement in enumerate(body):
            if isinstance(statement, typed.Return):
                return tuple(self._value(value, local) for value in statement.values)
            if isinstance(statement, typed.If):
                rest = tuple(body[position + 1 :])
                condition = self._condition(self._value(statement.condition, local))
                yes = self._function((*statement.then, *rest), dict(local), at)
                no = self._function((*statement.otherwise, *rest), dict(local), at)
                return tuple(self._choose(condition, a, b) for a, b in zip(yes, no, strict=True))
            assert isinstance(statement, typed.Assign)
            self._assign(statement, local)
        raise self._not_yet("a function that can end without a return", at)

    # --- expressions

    def _value(self, expression: typed.Expression, variables: Environment) -> Value:
        return self._results(expression, variables)[0]

    def _results(self, expression: typed.Expression, variables: Environment) -> tuple[Value, ...]:
        """Of a call of a function or operator, all results."""
        make = self._graph.make
        if isinstance(expression, typed.Apply):
            return self._apply(expression, variables)
        if isinstance(expression, typed.CallFunction):
            arguments = [self._value(argument, variables) for argument in expression.arguments]
            return self._call(expression.function, arguments, expression)
        kind = _kind(expression.type.element)
        if isinstance(expression, typed.Constant):
            return (make("constant", kind=kind, data=expression.value),)
        if isinstance(expression, typed.Read):
            return (self._read(expression, variables),)
        if isinstance(expression, typed.Operation):
            operands = [self._value(operand, variables) for operand in expression.operands]
            if expression.name in _LOGIC:
                operands = [self._condition(operand) for operand in operands]
            return (make(expression.name, operands, BIT if expression.name in _CONDITIONS else kind),)
        if isinstance(expression, typed.Choice):
            condition = self._condition(self._value(expression.condition, variables))
            yes, no = (self._value(side, variables) for side in (expression.yes, expression.no))
            return (self._choose(condition, yes, no),)
        if isinstance(expression, typed.Convert):
            operand = self._value(expression.operand, variables)
            return (self._convert(operand, expression.operand.type.element, expression.type.element),)
        if isinstance(expression, typed.StochasticFloor):
            operand = self._value(expression.operand, variables)
            if expression.drawing.shared:
                raise self._not_yet("shared random numbers", expression)
            if not operand.lanes:
                raise self._not_yet("a random number outside of map", expression)
            floor = make("stochastic_floor", (operand,), INT, (expression.drawing.site, *_FIXED_POINT))
            return (floor if kind == INT else make("to_float", (floor,), FLOAT),)
        if isinstance(expression, typed.SizeOf) and expression.length == UNIT:
            return (make("size", kind=INT),)
        raise self._not_yet(type(expression).__name__, expression)

    def _read(self, read: typed.Read, variables: Environment) -> Value:
        if read.storage == "global" and read.name in self._globals:
            return self._globals[read.name]
        if read.storage in ("argument", "variable") and read.name in variables:
            return variables[read.name]
        if read.storage == "parameter" and read.name in self._chosen:
            return self._graph.make("constant", kind=_kind(read.type.element), data=self._chosen[read.name])
        if read.name == "size" and read.storage == "read-only":
            return self._graph.make("size", kind=INT)
        raise self._not_yet(f"`{read.name}`", read)

    def _apply(self, call: typed.Apply, variables: Environment) -> tuple[Value, ...]:
        if call.operator == "extract":
            return tuple(self._extracted(index) for index in range(len(self._payload)))
        arrays = [a for a in call.arguments if not isinstance(a, typed.FunctionName)]
        for array in arrays:
            if not isinstance(array.type, Array) or array.type.length != UNIT or array.type.matrix is not None:
                raise self._not_yet(f"{call.operator} over {array.type}", array)
        functions = [a for a in call.arguments if isinstance(a, typed.FunctionName)]
        values = [self._value(array, variables) for array in arrays]
        if call.operator == "map" and functions:
            (named,) = functions
            if named.function is not None:
                return self._call(named.function, values, call)
            return (self._graph.make(named.name, values, _kind(call.type.element)),)
        if call.operator == "reduce" and len(functions) == 1 and functions[0].function is None:
            return (self._graph.make("reduce", values, _kind(call.type.element), functions[0].name),)
        raise self._not_yet(f"the operator {call.operator} as it is used here", call)

    def _extracted(self, index: int) -> Value:
        item = self._payload[index]
        if item.value.lanes:
            return self._graph.make("code", kind=BIT if item.bits == 1 else INT, data=index, lanes=True)
        return self._graph.make("field", kind=item.value.kind, data=index)

    def _condition(self, value: Value) -> Value:
        if value.kind == BIT:
            return value
        zero = self._graph.make("constant", kind=value.kind, data=0)
        return self._graph.make("!=", (value, zero), BIT)

    def _choose(self, condition: Value, yes: Value, no: Value) -> Value:
        return yes if yes is no else self._graph.make("choose", (condition, yes, no), yes.kind)

    def _convert(self, value: Value, source: Element, target: Element) -> Value:
        make = self._graph.make
        if source == target:
            return value
        if value.op == "constant" and target.floating:
            return make("constant", kind=FLOAT, data=float(value.data))
        if target.floating:
            if target.bits != 32:
                raise self._not_yet(f"the type {target}")
            return value if value.kind == FLOAT else make("to_float", (value,), FLOAT)
        bits = self._bits(target)
        if bits == 1 and target.kind == "uint":
            return value if value.kind == BIT else make("to_bit", (value,), BIT)
        if value.op == "to_float" and value.operands[0].op == "stochastic_floor":
            value = value.operands[0]  # at most 16 bits: float32 holds it as it is
        whole = value if value.kind == INT else make("to_int", (value,), INT)
        least, most = (0, 2**bits - 1) if target.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if bits == 32 or value.kind == BIT or self._fits(source, least, most):
            return whole
        if whole.op == "stochastic_floor":
            site, low, high = whole.data
            return make(whole.op, whole.operands, INT, (site, max(least, low), min(most, high)))
        return make("saturate", (whole,), INT, (least, most))

    def _fits(self, source: Element, least: int, most: int) -> bool:
        """Whether every value of the source's type lies between them."""
        if source.floating:
            return False
        bits = self._bits(source)
        low, high = (0, 2**bits - 1) if source.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return least <= low and high <= most


def _kind(element: Element) -> str:
    if element.floating:
        return FLOAT
    return BIT if element.bits == 1 and element.kind == "uint" else INT


def _result_elements(expression: typed.Expression) -> tuple[Element, ...]:
    if isinstance(expression, typed.Apply):
        return tuple(type_.element for type_ in expression.types)
    if isinstance(expression, typed.CallFunction):
        return expression.function.results
    return (expression.type.element,)

"""Expressions over single values and elements: operations of the graph, functions inlined."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from casync.compll import typed
from casync.compll.functions import ELEMENT_FUNCTIONS
from casync.compll.ir.choices import Choice
from casync.compll.ir.graph import BIT, FLOAT, INT, UNIT, Domain, Graph, Memory, Value
from casync.compll.types import FLOAT as FLOAT32
from casync.compll.types import INT32, Array, Element, Length
from casync.errors import NotAvailableError

__all__ = ["Environment", "Expressions"]

Environment = dict[str, Value]

_FIXED_POINT = (-32768, 32767)  # what stochastic_floor can hold
_CONDITIONS = frozenset({"<", ">", "<=", ">=", "==", "!=", "&&", "||", "!"})
_LOGIC = frozenset({"&&", "||", "!"})


class Expressions(ABC):
    """`local`, `globals` and `states` are what variables are now; what goes over arrays is for a subclass."""

    def __init__(self, codec: typed.Codec, choice: Choice) -> None:
        self.codec, self.choice, self.graph = codec, choice, Graph()
        self.local: Environment = {}
        self.globals: Environment = {}
        self.states: Environment = {}
        self._decodes = False  # whether the statements are those of decode
        self._mapped: Domain | None = None  # of the elements for each of which a function runs

    @abstractmethod
    def operator(self, call: typed.Apply) -> tuple[Value, ...]:
        """All results of an array operator."""

    @abstractmethod
    def picked(self, array: Value, index: Value, at: typed.Expression) -> Value:
        """One element of an array, the index clamped."""

    @abstractmethod
    def domain(self, length: Length) -> Domain:
        """What an array of a length that is known beforehand runs over."""

    def not_yet(self, what: str, at: typed.Expression | typed.Statement | None = None) -> NotAvailableError:
        place = self.codec.path if at is None else f"{self.codec.path}:{at.span.line}:{at.span.column}"
        return NotAvailableError(f"{place}: no code can be generated for {what} yet")

    def value(self, expression: typed.Expression) -> Value:
        return self.results(expression)[0]

    def results(self, expression: typed.Expression) -> tuple[Value, ...]:
        """Of a call of a function or operator, all results."""
        if isinstance(expression, typed.Apply):
            return self.operator(expression)
        if isinstance(expression, typed.CallFunction):
            arguments = [self.value(argument) for argument in expression.arguments]
            return self.call(expression.function, arguments, expression)
        return (self._single(expression),)

    def _single(self, expression: typed.Expression) -> Value:
        make = self.graph.make
        kind = self.kind(expression.type.element)
        if isinstance(expression, typed.Constant):
            return make("constant", kind=kind, data=expression.value)
        if isinstance(expression, typed.Read):
            return self._read(expression, kind)
        if isinstance(expression, typed.Operation):
            operands = [self.value(operand) for operand in expression.operands]
            if expression.name in _LOGIC:
                operands = [self.condition(operand) for operand in operands]
            return make(expression.name, operands, BIT if expression.name in _CONDITIONS else kind)
        if isinstance(expression, typed.Choice):
            condition = self.condition(self.value(expression.condition))
            return self.choose(condition, self.value(expression.yes), self.value(expression.no))
        if isinstance(expression, typed.Convert):
            source = expression.operand.type.element
            return self.convert(self.value(expression.operand), source, expression.type.element)
        if isinstance(expression, typed.Pick):
            return self.picked(self.value(expression.array), self.value(expression.index), expression)
        if isinstance(expression, typed.StochasticFloor):
            return self._stochastic_floor(expression)
        if isinstance(expression, typed.Draw):
            return self._draw(expression)
        assert isinstance(expression, typed.SizeOf)
        return self._size(expression)

    def _stochastic_floor(self, expression: typed.StochasticFloor) -> Value:
        operand = self.value(expression.operand)
        if expression.drawing.shared:
            raise self.not_yet("shared random numbers in stochastic rounding", expression)
        if not operand.lanes:
            raise self.not_yet("a random number outside of map", expression)
        data = (expression.drawing.site, *_FIXED_POINT)
        floor = self.graph.make("stochastic_floor", (operand,), INT, data)
        return self.graph.make("to_float", (floor,))

    def _draw(self, expression: typed.Draw) -> Value:
        """A number of 16 bits for each element of a map, or for a single value; it is put between low and high."""
        make, drawing = self.graph.make, expression.drawing
        element = expression.type.element
        low, high = self.value(expression.low), self.value(expression.high)
        kind = FLOAT if element.floating else INT
        width = make("-", (high, low), kind)
        if self._mapped is not None:
            bits = make("draws", kind=INT, data=(drawing.site, drawing.shared), domain=self._mapped)
            if element.floating:
                half = self.graph.constant(0.5, FLOAT)
                unit = make("/", (make("+", (make("to_float", (bits,)), half)), self.graph.constant(65536.0, FLOAT)))
                return make("+", (low, make("*", (width, unit))))
            drawn = make("+", (low, make(">>", (make("*", (width, bits), INT), self.graph.constant(16)), INT)), INT)
            return self.condition(drawn) if self.kind(element) == BIT else drawn
        if element.floating and drawing.shared:
            return make("+", (low, make("*", (width, make("shared_draw", data=drawing.site)))))
        raise self.not_yet("a random number here", expression)

    def _size(self, expression: typed.SizeOf) -> Value:
        if expression.array is None:
            return self.length(self.domain(expression.length))
        if expression.chunks or expression.length.kind == "unit":
            return self.length(self.domain(expression.length))
        return self.length(self.value(expression.array).domain)

    def length(self, domain: Domain | None) -> Value:
        assert domain is not None
        return self.graph.make("size", kind=INT) if domain.length is None else domain.length

    def _read(self, read: typed.Read, kind: str) -> Value:
        if read.storage in ("argument", "variable", "output") and read.name in self.local:
            return self.local[read.name]
        if read.storage == "global" and read.name in self.globals:
            return self.globals[read.name]
        if read.storage == "state":
            return self.state(read.name)
        if read.storage == "constant":
            constant = next(c for c in self.codec.constants if c.name == read.name)
            return self.value(constant.value)
        if read.storage == "parameter":
            if read.name in self.choice.parameters:
                return self.graph.make("constant", kind=kind, data=self.choice.parameters[read.name])
            return self.graph.make("parameter", kind=kind, data=read.name)
        if read.storage == "read-only":
            if read.name == "size":
                return self.graph.make("size", kind=INT)
            if read.name == "world" and self._decodes and self.codec.properties.rounds[0].startswith("reduce"):
                return self.graph.make("fact", kind=kind, data="merged")  # an own payload is decoded, too
            return self.graph.make("fact", kind=kind, data=read.name)
        raise self.not_yet(f"`{read.name}`", read)

    def state(self, name: str) -> Value:
        if name not in self.states:
            declared = next(state for state in self.codec.states if state.name == name)
            if isinstance(declared.type, Array):
                if not declared.type.element.floating or declared.type.element.bits != 32:
                    raise self.not_yet(f"state of {declared.type.element}")
                domain = UNIT if declared.type.length.kind == "unit" else self.domain(declared.type.length)
                self.states[name] = self.graph.load(self.graph.memory("state", "f32", domain, name))
            else:
                self.states[name] = self.graph.make("state", kind=self.kind(declared.type.element), data=name)
        return self.states[name]

    # --- functions

    def call(self, function: typed.Function, arguments: Sequence[Value], at: typed.Expression) -> tuple[Value, ...]:
        outer = self.local
        names = [argument.name for argument in function.arguments]
        self.local = dict(zip(names, arguments, strict=True))
        results = self._body(function.body, at)
        self.local = outer
        return results

    def _body(self, body: Sequence[typed.Statement], at: typed.Expression) -> tuple[Value, ...]:
        """A path ends at its return; the paths of an `if` are chosen between."""
        for position, statement in enumerate(body):
            if isinstance(statement, typed.Return):
                return tuple(self.value(value) for value in statement.values)
            if isinstance(statement, typed.If):
                rest = tuple(body[position + 1 :])
                condition = self.condition(self.value(statement.condition))
                before = dict(self.local)
                yes = self._body((*statement.then, *rest), at)
                self.local = before
                no = self._body((*statement.otherwise, *rest), at)
                return tuple(self.choose(condition, a, b) for a, b in zip(yes, no, strict=True))
            assert isinstance(statement, typed.Assign)
            found = zip(statement.targets, self.results(statement.value), self.elements(statement.value), strict=False)
            self.local |= {t.name: self.convert(result, e, t.type.element) for t, result, e in found}
        raise self.not_yet("a function that can end without a return", at)

    def apply(self, named: typed.FunctionName, values: Sequence[Value], at: typed.Apply) -> tuple[Value, ...]:
        """A function that an operator was given, for one element of each array."""
        given = [argument.type.element for argument in at.arguments if isinstance(argument.type, Array)]
        if named.function is not None:
            wanted = [argument.type.element for argument in named.function.arguments]
            values = [self.convert(*each) for each in zip(values, given, wanted, strict=True)]
            outer, self._mapped = self._mapped, values[0].domain
            results = self.call(named.function, values, at)
            self._mapped = outer
            return results
        function = ELEMENT_FUNCTIONS[named.name]
        common = FLOAT32 if any(element.floating for element in given) else INT32
        takes, gives = function.takes or common, function.gives or common
        values = [self.convert(value, element, takes) for value, element in zip(values, given, strict=True)]
        return (self.graph.make(named.name, values, self.kind(gives)),)

    @staticmethod
    def elements(expression: typed.Expression) -> tuple[Element, ...]:
        """The types of its results."""
        if isinstance(expression, typed.Apply):
            return tuple(type_.element for type_ in expression.types)
        if isinstance(expression, typed.CallFunction):
            return expression.function.results
        return (expression.type.element,)

    # --- conditions and conversions

    @staticmethod
    def kind(element: Element) -> str:
        if element.floating:
            return FLOAT
        return BIT if element.bits == 1 and element.kind == "uint" else INT

    def condition(self, value: Value) -> Value:
        if value.kind == BIT:
            return value
        return self.graph.make("!=", (value, self.graph.constant(0, value.kind)), BIT)

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        return yes if yes is no else self.graph.make("choose", (condition, yes, no), yes.kind)

    def convert(self, value: Value, source: Element, target: Element) -> Value:
        make = self.graph.make
        if source == target:
            return value
        if target.floating and target.bits != 32:
            return make(f"to_{target.name}", (self.convert(value, source, FLOAT32),), FLOAT)
        if value.op == "constant" and target.floating:
            return make("constant", kind=FLOAT, data=float(value.data))
        if target.floating:
            return value if value.kind == FLOAT else make("to_float", (value,), FLOAT)
        bits = self.choice.bits(target)
        if bits == 1 and target.kind == "uint":
            return value if value.kind == BIT else make("to_bit", (value,), BIT)
        if value.op == "to_float" and value.operands[0].op == "stochastic_floor":
            value = value.operands[0]  # at most 16 bits: float32 holds it as it is
        whole = value if value.kind == INT else make("to_int", (value,), INT)
        least, most = _limits(target, bits)
        if bits == 32 or value.kind == BIT or self._fits(source, least, most) or _held(whole, least, most):
            return whole
        if whole.op == "stochastic_floor":
            site, low, high = whole.data
            return make(whole.op, whole.operands, INT, (site, max(least, low), min(most, high)))
        return make("saturate", (whole,), INT, (least, most))

    def _fits(self, source: Element, least: int, most: int) -> bool:
        """Whether every value of the source's type lies between them."""
        if source.floating:
            return False
        low, high = _limits(source, self.choice.bits(source))
        return least <= low and high <= most


def _held(value: Value, least: int, most: int) -> bool:
    """Whether it is stored so that it lies between them."""
    stored = value.data.stored if value.op == "load" and isinstance(value.data, Memory) else "i32"
    return stored[0] == "u" and least <= 0 and 2 ** int(stored[1:]) - 1 <= most


def _limits(element: Element, bits: int) -> tuple[int, int]:
    return (0, 2**bits - 1) if element.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

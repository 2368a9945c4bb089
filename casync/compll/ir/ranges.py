"""Between which numbers values certainly lie, worked out from what they are made of; NaN aside."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_float
from typing import NamedTuple

from casync.compll import typed
from casync.compll.ir.graph import BIT, FLOAT, INT, Domain, Memory, Value, walk
from casync.compll.ir.program import Block, Call, Pass, Reduce, Store

__all__ = ["Range", "Ranges", "position"]

_INT = (-(2**31), 2**31 - 1)


class Range(NamedTuple):
    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high


_ANY = Range(-math.inf, math.inf)
_BOTH = Range(0, 1)


def position(value: Value) -> int | None:
    """C of index % C."""
    if value.op == "%" and value.operands[0].op == "index" and value.operands[1].op == "constant":
        return int(value.operands[1].data)
    return None


class Ranges:
    """Of the values of a program so far."""

    def __init__(self, codec: typed.Codec, block: Block) -> None:
        self._parameters = {parameter.name: parameter for parameter in codec.parameters}
        self.makers: dict[Value | Memory, Reduce | Store | Call] = {}
        for step in block.steps:
            if isinstance(step, Call):
                self.makers |= {made: step for made in step.makes}
            elif isinstance(step, Pass):
                for action in step.actions:
                    if isinstance(action, (Reduce, Store)):
                        self.makers |= {made: action for made in action.makes}

    def of(self, value: Value, known: Mapping[int, Range] | None = None) -> Range:
        """`known`: of some of the values that it is made of, by number."""
        found = dict(known or {})
        for part in walk([value]):
            if part.number not in found:
                found[part.number] = self._held(part, self._range(part, [found[o.number] for o in part.operands]))
        return found[value.number]

    @staticmethod
    def _held(value: Value, found: Range) -> Range:
        """As float32 rounds it; all integers if one might wrap around."""
        if value.kind == FLOAT:
            return Range(*(c_float(end).value for end in found))
        if value.kind == BIT:
            return found
        return found if _INT[0] <= found.low and found.high <= _INT[1] else Range(*_INT)

    def _range(self, value: Value, given: list[Range]) -> Range:
        if value.op == "constant":
            return Range(value.data, value.data) if value.data == value.data else _ANY
        if value.op == "parameter":
            accepted = self._parameters[value.data].accepted
            return Range(min(accepted), max(accepted)) if accepted else _ANY
        if value.op == "index" or value.op == "size":
            return Range(0, _INT[1])
        if value.op in ("load", "pick") and isinstance(value.data, Memory):
            return self._of_memory(value.data)
        if value.op == "result" and isinstance(made := self.makers.get(value), Reduce) and made.function == "maxAbs":
            return Range(0, math.inf)
        if value.op == "/" and value.kind == FLOAT:
            numerator, denominator = value.operands
            return Range(-1, 1) if self._exceeds(denominator, numerator) else _ANY
        found = _arithmetic(value, given)
        return _BOTH if found is None and value.kind == BIT else found or _ANY

    def _exceeds(self, value: Value, other: Value) -> bool:
        """Whether value >= |other|: as its largest magnitude does, and what that is with a factor of at least 1."""
        if value.op == "*":
            return any(
                self._exceeds(one, other) and self.of(factor).low >= 1
                for one, factor in (value.operands, value.operands[::-1])
            )
        made = self.makers.get(value)
        return isinstance(made, Reduce) and made.function == "maxAbs" and made.value is other

    def _of_memory(self, memory: Memory) -> Range:
        made = self.makers.get(memory)
        if isinstance(made, Store):
            return self.of(made.value)
        if isinstance(made, Reduce) and made.function == "add" and made.value.kind == INT:
            return self.sums(made.value, memory.domain)
        if memory.stored == "i8":
            return Range(-128, 127)
        return Range(0, 2 ** int(memory.stored[1:]) - 1) if memory.stored[0] == "u" else _ANY

    def sums(self, value: Value, chunks: Domain) -> Range:
        """Of integers, over each chunk; the last one may be short."""
        ends = [self.of(value, at) for at in self.positions(value, chunks)]
        found = Range(sum(min(one.low, 0) for one in ends), sum(max(one.high, 0) for one in ends))
        return found if ends and _INT[0] <= found.low and found.high <= _INT[1] else Range(*_INT)

    @staticmethod
    def positions(value: Value, chunks: Domain) -> Iterator[dict[int, Range]]:
        """What `index % C` is at each place in a chunk of C elements, as `of` takes it."""
        chunk = chunks.chunk
        if chunk is not None and chunk.op == "constant" and chunk.data <= 16:
            values = [part for part in walk([value]) if position(part) == chunk.data]
            for place in range(chunk.data):
                yield {part.number: Range(place, place) for part in values}


_COMPARED = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq,
             "!=": operator.ne}  # fmt: skip
_AT_ENDS: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_INTEGERS_AT_ENDS: dict[str, Callable[[float, float], float]] = {**_AT_ENDS, "min": min, "max": max}


def _arithmetic(value: Value, given: list[Range]) -> Range | None:
    """None: nothing is known."""
    if value.op in ("spread", "same", "to_float"):
        return given[0]
    if value.op == "choose":
        condition, yes, no = given
        if condition.exact:
            return yes if condition.low else no
        return Range(min(yes.low, no.low), max(yes.high, no.high))
    integers = all(operand.kind == INT for operand in value.operands)  # which are never NaN
    if value.op in _COMPARED and integers:
        return _compared(value.op, *given)
    at_ends = _INTEGERS_AT_ENDS if integers else _AT_ENDS
    if value.op in at_ends:
        ends = [at_ends[value.op](a, b) for a in given[0] for b in given[1]]
        return None if any(end != end for end in ends) else Range(min(ends), max(ends))
    if value.op == "neg":
        return Range(-given[0].high, -given[0].low)
    if value.op in ("rint", "to_int", "saturate", "/", "%") and all(map(math.isfinite, given[0])):
        return _whole(value, given)
    return None


def _compared(sign: str, a: Range, b: Range) -> Range | None:
    if a.exact and b.exact:
        holds = float(_COMPARED[sign](a.low, b.low))
        return Range(holds, holds)
    if sign in ("<", ">", "<=", ">="):
        ends = {_COMPARED[sign](x, y) for x in a for y in b}
        return Range(float(min(ends)), float(max(ends)))
    return None


def _whole(value: Value, given: list[Range]) -> Range | None:
    low, high = given[0]
    if value.op == "rint":
        return Range(round(low), round(high))
    if value.op == "to_int":
        nan = value.operands[0].kind == FLOAT  # becomes 0
        return Range(min(int(low), 0), max(int(high), 0)) if nan else given[0]
    if value.op == "saturate":
        least, most = value.data
        return Range(min(max(low, least), most), min(max(high, least), most))
    by = given[1]
    if value.kind != INT or not by.exact or by.low <= 0:
        return None
    if value.op == "/":
        return Range(int(low / by.low), int(high / by.low))
    if given[0].exact:
        left = math.fmod(low, by.low)
        return Range(left, left)
    return Range(0 if low >= 0 else 1 - by.low, by.low - 1)

"""Works out what decode makes of the payload that encode has just packed, as an expression of the gradient's elements.

Where there is such an expression, the residual is computed while the payload is made, and nothing is decoded for it.
Steps that pack are skipped where they lose nothing: runs that are repeated as often as they are long, and digits
that are taken out of the sum that they were put into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from casync.compll.ir.graph import UNIT, Domain, Memory, Value, walk
from casync.compll.ir.program import Block, Call, Lose, Pass, Reduce, Step, Store, float_sums, needs
from casync.compll.ir.ranges import Range, Ranges, position

if TYPE_CHECKING:
    from casync.compll.ir.lower import Lowering

__all__ = ["OwnPayload", "lose"]

_MOST_RUNS = 1024  # kinds of runs that are tried


def lose(lowering: Lowering) -> None:
    """Adds the action that leaves the residual to what encode does. Raises `NotAvailableError` where that takes more
    than an expression of an element.
    """
    block, assigned = lowering.block, set(lowering.assigned)
    lowering.own = own = OwnPayload(lowering)
    lowering.forget_names()
    lowering.block = Block(changed=block.changed | set(block.makes))
    value = own.digits_apart(lowering.decoded())
    elements = all(_of_element(part) for part in walk([value]))
    singles = [packed for packed in lowering.packed if not packed.lanes]  # which are computed last
    elements &= not any(part.op == "pick" and part.data is None for part in walk(singles))
    if lowering.block.steps or lowering.assigned != assigned or value.domain is not UNIT or not elements:
        raise lowering.not_yet("a residual without decoding")
    lowering.block = block
    _place(lowering, Lose(value, lowering.graph.make("gradient", domain=UNIT)))


def _of_element(value: Value) -> bool:
    return value.op not in ("load", "pick", "spread", "scatter", "sorted", "transpose", "stochastic_floor", "draws")


def _place(lowering: Lowering, action: Lose) -> None:
    """Where the gradient is read for the last time, if what may not be finite is known there; otherwise at the end."""
    steps = lowering.block.steps
    last = max((at for at, step in enumerate(steps) if _reads_gradient(step)), default=len(steps) - 1)
    scalars = [lowering.consumed(value) for value in lowering.packed if not value.lanes]
    missing = {made for step in steps[last:] for made in step.makes}.intersection(needs([action.value, *scalars]))
    step = steps[last] if steps else None
    picks = isinstance(step, Pass) and any(value.op == "pick" for value in walk(step.reads))
    if isinstance(step, Pass) and step.domain is UNIT and not missing and not picks:
        if not any(float_sums(later) for later in steps[last:]):
            step.actions.append(action)
            return
    steps.append(Pass(UNIT, None, [action]))


def _reads_gradient(step: Step) -> bool:
    return any(value.op == "gradient" or (value.op == "pick" and value.data is None) for value in walk(step.reads))


class OwnPayload:
    """Stands for the payload while decode is lowered behind encode."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._ranges = Ranges(lowering.codec, lowering.block)

    def extracted(self) -> tuple[Value, ...]:
        return tuple(self._lowering.packed)

    def repeated(self, value: Value, counts: Value, domain: Domain) -> Value | None:
        """repeat(value, counts), if those are the runs of an array, in whatever way they were packed."""
        for call, heads, lengths in self._runs([value, counts]):
            (array,) = call.arrays
            read = self._lowering.graph.load(array)
            if array.domain is domain and self._kept(value, counts, call, (heads, lengths), self._ranges.of(read)):
                return read
        return None

    def _runs(self, values: list[Value]) -> Iterator[tuple[Call, Memory, Memory]]:
        for part in walk(values):
            made = self._ranges.makers.get(part.data) if part.op == "load" else None
            if isinstance(made, Call) and made.operator == "runlength":
                _, heads, lengths = made.makes
                assert isinstance(heads, Memory) and isinstance(lengths, Memory)
                yield made, heads, lengths

    def _kept(self, value: Value, counts: Value, call: Call, runs: tuple[Memory, Memory], elements: Range) -> bool:
        """Whether head and length come out of it for each run that there may be."""
        repeated, longest = map(self._ranges.of, call.scalars)
        if not (repeated.exact and longest.exact) or elements.high - elements.low + longest.high > _MOST_RUNS:
            return False
        kinds = [(head, 1) for head in range(int(elements.low), int(elements.high) + 1)]
        kinds += [(int(repeated.low), length) for length in range(2, int(longest.low) + 1)]
        numbers = [self._lowering.graph.load(memory).number for memory in runs]
        for kind in kinds:
            known = {number: Range(one, one) for number, one in zip(numbers, kind, strict=True)}
            if [self._ranges.of(one, known) for one in (value, counts)] != [Range(one, one) for one in kind]:
                return False
        return True

    def digits_apart(self, value: Value) -> Value:
        """With each digit itself in place of the one that is taken out of a sum of digits."""
        known = {part.number: digit for part in walk([value]) if (digit := self._digit(part)) is not None}
        return self._lowering.graph.replace(value, known)

    def _digit(self, value: Value) -> Value | None:
        """Of sum / weight % base."""
        if value.op != "%" or value.operands[0].op != "/" or value.operands[1].op != "constant":
            return None
        (number, weight), base = value.operands[0].operands, value.operands[1].data
        made = self._sum(number)
        if made is None or made.to is None or made.value.op != "*":
            return None
        for digit, own_weight in (made.value.operands, made.value.operands[::-1]):
            digits = self._ranges.of(digit)
            places = list(self._ranges.positions(made.value, made.to.domain))
            if places and digits.low >= 0 and not any(map(position, walk([digit]))):
                weights = [self._at(own_weight, place) for place in places]
                if weights == [self._at(weight, place) for place in places] and _positional(weights, digits, base):
                    return digit
        return None

    def _sum(self, number: Value) -> Reduce | None:
        """What added up the chunk of the element, if nothing was lost when it was stored."""
        if number.op != "pick" or number.operands[0].op != "/" or not isinstance(number.data, Memory):
            return None
        index, chunk = number.operands[0].operands
        made = self._ranges.makers.get(number.data)
        if isinstance(made, Store) and made.value.op == "saturate" and made.value.operands[0].op == "load":
            (stored,) = made.value.operands
            if self._ranges.of(made.value) != self._ranges.of(stored):
                return None
            made = self._ranges.makers.get(stored.data)
        if isinstance(made, Reduce) and made.to is not None and made.function == "add":
            return made if index.op == "index" and made.to.domain.chunk is chunk else None
        return None

    def _at(self, value: Value, place: dict[int, Range]) -> float | None:
        """A number that the position in a chunk decides."""
        found = self._ranges.of(value, place)
        return found.low if found.exact else None


def _positional(weights: list[float | None], digits: Range, base: int) -> bool:
    """Whether a sum of digits times weights has each digit as sum / weight % base."""
    known = [int(weight) for weight in weights if weight is not None and weight > 0]
    if len(known) < len(weights) or digits.high >= base:
        return False
    return all(
        digits.high * sum(other for other in known if other < weight) < weight
        and all(other % (weight * base) == 0 for other in known if other > weight)
        and known.count(weight) == 1
        for weight in known
    )

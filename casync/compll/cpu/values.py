"""The C++ of values: single ones, written where they are first needed, and sixteen elements at a time."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager

from casync.compll.cpu.products import Product
from casync.compll.cpu.text import LANE_TYPES, SCALAR_TYPES, name_of, text_of
from casync.compll.ir.graph import UNIT, Domain, Memory, Value, walk
from casync.compll.ir.program import Pass, Step
from casync.errors import NotAvailableError

__all__ = ["NUMBERS", "Values", "elements_inside", "pointer", "reads_gradient", "shift_of"]

NUMBERS = "add(lanes(static_cast<std::int32_t>(i)), lane_numbers())"
"""The C++ of the numbers of sixteen elements from i on."""


def elements_inside(values: Iterable[Value], stop: Container[int] = ()) -> list[Value]:
    """Return what a pass computes for each element, operands first. A chunk's value, or what `stop` has, is there."""
    seen: dict[int, Value] = {}
    waiting = [value for value in values if value.lanes]
    while waiting:
        value = waiting.pop()
        if value.number not in seen:
            seen[value.number] = value
            if value.op != "spread" and value.number not in stop:
                waiting += [operand for operand in value.operands if operand.lanes]
    return sorted(seen.values(), key=lambda value: value.number)


def reads_gradient(step: Step) -> bool:
    """Whether it is a pass, or a product, that has each element of it."""
    if isinstance(step, Product):
        return step.gradient is not None
    return isinstance(step, Pass) and any(value.op == "gradient" for value in elements_inside(step.reads))


def shift_of(index: Value) -> Value | None:
    """The single value of a chunk that is added to an element's number, where that gives the index."""
    if index.op != "+" or [operand.op for operand in index.operands] != ["index", "spread"]:
        return None
    return index.operands[1].operands[0]


def pointer(memory: Memory) -> str:
    return f"m{memory.number}"


class Values:
    """Prints into `lines`. `leaves` gives the text of what is read from outside; `failed` leaves the function where an
    array is longer than it may be or a payload is not what it should be.
    """

    def __init__(self, leaves: dict[str, str], path: str, failed: str) -> None:
        self.lines: list[str] = []
        self._leaves, self._path, self._failed = leaves, path, failed
        self._defined: set[int] = set()
        self._tables: dict[int, str] = {}  # elements that are looked up -> where
        self.coordinate = "facts.key.coordinate"  # of draws outside of maps
        self.checks = False  # whether the pass that is printed looks for what is not finite
        self.left = False  # whether the residual has what the gradient is made of

    def not_yet(self, what: str) -> NotAvailableError:
        return NotAvailableError(f"{self._path}: no code can be generated for {what} yet")

    def line(self, *lines: str) -> None:
        self.lines += lines

    # --- single values

    def have(self, *values: Value) -> None:
        """Single values that have a name from here on."""
        self._defined |= {value.number for value in values}

    def single(self, value: Value) -> str:
        """The name of a single value, after the lines that define it."""
        for part in walk([value]):
            if part.number not in self._defined:
                if part.op == "result":
                    raise self.not_yet("a value that is needed before it is there")
                self._defined.add(part.number)
                self.line(
                    f"[[maybe_unused]] const {SCALAR_TYPES[part.kind]} v{part.number} = {self._text(part, False)};"
                )
        return f"v{value.number}"

    def length(self, domain: Domain) -> str:
        return "facts.n" if domain.length is None else f"std::int64_t{{{self.single(domain.length)}}}"

    def has(self, value: Value) -> bool:
        return value.number in self._defined

    def _fits(self, domain: Domain) -> None:
        """An array in scratch memory: what is chosen from another one, or a unit's chunks, cannot be too long."""
        length = domain.length
        if length is not None and length.op not in ("result", "count") and domain.parent is not UNIT:
            self.line(f"if ({self.length(domain)} > room) {self._failed}")

    def _text(self, value: Value, wide: bool) -> str:
        return text_of(value, wide, self._leaf)

    def _leaf(self, value: Value, wide: bool) -> str:
        """Return the C++ of a value that is read from memory, or from outside."""
        if value.op == "load":
            return f"elements({pointer(value.data)}, i, count)"
        if value.op == "pick":
            if wide and (shift := shift_of(value.operands[0])) is not None:
                return self._neighbours(value, shift)
            at = name_of(value.operands[0], wide)
            if value.data is None and self.left:
                return f"pick(left, {at}, facts.n) * {'factor' if wide else 'job.mid'}"
            if value.data is None:
                return f"gradient_at<kFeedback>(job, {at})"
            return f"pick({pointer(value.data)}, {at}, {self.length(value.data.domain)})"
        if value.op == "index":
            return NUMBERS
        if value.op == "draw_below":
            return f"draw_below(facts.key, {value.data}U, {name_of(value.operands[0], wide)})"
        if value.op == "shared_draw":
            return f"shared_draw(facts.key, {value.data}U, {self.coordinate})"
        key = value.op if value.op in self._leaves else f"{value.op} {value.data}"
        if key not in self._leaves:
            raise self.not_yet(f"`{value.data or value.op}` here")
        return self._leaves[key]

    def _neighbours(self, value: Value, shift: Value) -> str:
        """Sixteen elements that lie one behind the other."""
        at = f"std::int64_t{{v{shift.number}}} + i"
        if value.data is not None:
            return f"neighbours({pointer(value.data)}, {at}, count, {self.length(value.data.domain)})"
        if self.left:
            return f"neighbours(left, {at}, count, facts.n) * factor"
        return f"gradient_neighbours<kFeedback>(job, {at}, count)"

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Emit lines inside a brace: what is defined there is not known after it."""
        defined = set(self._defined)
        outer, self.lines = self.lines, []
        yield
        outer += [f"  {line}" for line in self.lines]
        self.lines, self._defined = outer, defined

    def _element(self, value: Value) -> None:
        if value.op == "spread":
            return
        if value.number in self._tables:
            at = self._tables[value.number]
            self.line(f"const {LANE_TYPES[value.kind]} v{value.number} = elements(t{value.number}, {at}, 16);")
            return
        if value.op in ("stochastic_floor", "draws"):
            drawn = f"d{value.number}.at(i)"
            if value.op == "stochastic_floor":
                _, least, most = value.data
                operand = name_of(value.operands[0], True)
                drawn = f"stochastic_floor({operand}, {drawn}, {least}.0F, {most}.0F)"
            self.line(f"[[maybe_unused]] const I32x16 v{value.number} = {drawn};")
            return
        if value.op == "gradient":
            if self.left:
                self.line("const F32x16 x = elements(left, i, count);")
            else:
                self.line("F32x16 x = elements(accumulated, i, count);",
                          "if constexpr (kFeedback) x = x + elements(residual, i, count);")  # fmt: skip
            self.line(f"[[maybe_unused]] const F32x16 v{value.number} = x * factor;")
            if self.checks:
                self.line(f"check.see(v{value.number});")
            return
        self.line(f"[[maybe_unused]] const {LANE_TYPES[value.kind]} v{value.number} = {self._text(value, True)};")

"""The C++ of reductions: the fixed tree of docs/compll.md, element i of a block of 1024 in lane i mod 16."""

from __future__ import annotations

from dataclasses import dataclass

from casync.compll.cpu.text import is_zero, name_of
from casync.compll.ir.graph import BIT, INT, Value
from casync.compll.ir.program import Reduce

__all__ = ["Reduction"]

_NEUTRAL = {"smaller": "__builtin_inff()", "greater": "-__builtin_inff()"}


@dataclass(frozen=True)
class Reduction:
    """v1 is its result and l1 its lanes, for each of `pages` that are read side by side."""

    action: Reduce
    pages: int = 1

    @property
    def name(self) -> str:
        made = self.action.result if self.action.result is not None else self.action.to
        assert made is not None
        return f"{'v' if self.action.result is not None else 'c'}{made.number}"

    @property
    def _lanes(self) -> str:
        return f"l{self.name}"

    @property
    def _page(self) -> str:
        return f"{self._lanes}[page]" if self.pages > 1 else self._lanes

    @property
    def _declared(self) -> str:
        return f"{self._lanes}[{self.pages}]" if self.pages > 1 else self._lanes

    def start(self, length: str) -> list[str]:
        """Return the lines before the loop over `length` elements."""
        value, function, name = self.action.value, self.action.function, self.name
        if self.action.float_sum:
            return [f"float {name} = 0;", f"F32x16 {self._declared};"]
        if function == "add" and value.kind == BIT:
            return [f"std::int32_t {name} = 0;"]
        if function == "add":
            return [f"I32x16 {self._declared}{{}};"]
        if function == "maxAbs":
            return [f"F32x16 {self._declared}{{}};"]
        assert self.action.start is not None
        first = f"{length} > 0 ? v{self.action.start.number} : {_NEUTRAL[function]}"
        if self.pages > 1:
            return [f"F32x16 {self._declared};", f"for (F32x16& lane : {self._lanes}) lane = splat({first});"]
        return [f"F32x16 {self._lanes} = splat({first});"]

    def clear(self) -> list[str]:
        """Return the lines at the start of blocks that are read side by side."""
        if not self.action.float_sum:
            return []
        return [f"for (F32x16& lane : {self._lanes}) lane = F32x16{{}};"]

    def clear_one(self) -> list[str]:
        """Return the same where one page is read."""
        return [f"{self._lanes}{'[0]' if self.pages > 1 else ''} = F32x16{{}};"] if self.action.float_sum else []

    def accumulate(self) -> str:
        """Return the C++ that reduces sixteen elements. `whole` says whether all are there, `count` how many are."""
        value, lanes = self.action.value, self._page
        operand = name_of(value, True)
        if self.action.float_sum:
            mask, summand = _masked(value)
            if mask is None:
                return f"{lanes} = {lanes} + (whole ? {summand} : keep(first_lanes(count), {summand}));"
            return f"{lanes} = add_where(whole ? {mask} : both({mask}, first_lanes(count)), {lanes}, {summand});"
        if self.action.function == "add" and value.kind == BIT:
            return f"{self.name} += __builtin_popcount(bits_of({operand}) & ((1U << count) - 1U));"
        if self.action.function == "add":
            return f"{lanes} = add({lanes}, whole ? {operand} : choose(first_lanes(count), {operand}, lanes(0)));"
        function = "smaller" if self.action.function == "smaller" else "larger"
        candidate = f"magnitude({operand})" if self.action.function == "maxAbs" else operand
        return f"{lanes} = {function}(whole ? {candidate} : select(first_lanes(count), {candidate}, {lanes}), {lanes});"

    def fold(self, several: bool = False) -> list[str]:
        """Return the lines at the end of a block, or of `several` side by side."""
        if not self.action.float_sum:
            return []
        if several:
            return [f"for (const F32x16& lane : {self._lanes}) {self.name} += fold<Add>(lane);"]
        return [f"{self.name} += fold<Add>({self._lanes}{'[0]' if self.pages > 1 else ''});"]

    def finish(self) -> list[str]:
        value, function, lanes = self.action.value, self.action.function, self._lanes
        if function == "add" and value.kind != INT:
            return []
        if function == "add":
            return [f"const std::int32_t {self.name} = sum_of({lanes});"]
        step, tree = ("smaller", "Smaller") if function == "smaller" else ("larger", "Larger")
        if self.pages == 1:
            return [f"const float {self.name} = fold<{tree}>({lanes});"]
        return [
            f"for (int page = 1; page < {self.pages}; ++page) {lanes}[0] = {step}({lanes}[page], {lanes}[0]);",
            f"const float {self.name} = fold<{tree}>({lanes}[0]);",
        ]


def _masked(value: Value) -> tuple[str | None, str]:
    """A summand that is zero where a condition says so: the mask of the others, and what they are.

    A sum that begins with +0 never becomes -0, so leaving a zero out changes no bit.
    """
    if value.op == "choose":
        condition, yes, no = value.operands
        if condition.lanes and is_zero(no):
            return name_of(condition, True), name_of(yes, True)
        if condition.lanes and is_zero(yes):
            return f"negate({name_of(condition, True)})", name_of(no, True)
    return None, name_of(value, True)

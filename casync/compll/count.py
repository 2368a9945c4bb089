"""Counts lines as table 5 of the paper does: the algorithm's logic, its functions, and what is declared.

Lines of the formatted text; comments, empty lines and the properties of a codec are no lines of its logic. `logic` is
encode, decode and whatever else runs by itself (init, merge), with their heads and closing braces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from casync.compll import tree
from casync.compll.check import ENTRIES
from casync.compll.fmt import format_program

__all__ = ["PAPER", "Count", "Limit", "count_lines", "table"]


@dataclass(frozen=True)
class Limit:
    """The paper's numbers, and how many times of them we allow ourselves."""

    logic: int
    functions: int
    times: float = 1.0


PAPER = {
    "onebit": Limit(21, 9),
    "tbq": Limit(13, 18),
    "terngrad": Limit(23, 7),
    "dgc": Limit(29, 15, 1.3),
    "graddrop": Limit(29, 21),
    "powersgd": Limit(15, 10, 1.3),
}


@dataclass(frozen=True)
class Count:
    logic: int
    functions: int
    declarations: int

    def within(self, limit: Limit) -> bool:
        return self.logic <= limit.logic * limit.times and self.functions <= limit.functions * limit.times


def count_lines(program: tree.Program) -> Count:
    logic = [item for item in program.items if isinstance(item, tree.Function) and item.name in ENTRIES]
    functions = [item for item in program.items if isinstance(item, tree.Function) and item.name not in ENTRIES]
    declarations = [item for item in program.items if not isinstance(item, tree.Function)]
    return Count(_lines(program, logic), _lines(program, functions), _lines(program, declarations))


def _lines(program: tree.Program, items: Sequence[tree.Item]) -> int:
    alone = replace(program, items=tuple(items), comments=())
    return sum(1 for line in format_program(alone).splitlines() if line)


def table(counts: Iterable[tuple[str, Count]]) -> list[str]:
    """One line per file, beside the paper's numbers where it has some."""
    lines = [f"{'algorithm':<12}{'logic':>6}{'paper':>7}{'functions':>11}{'paper':>7}{'declared':>10}  limit"]
    for name, count in counts:
        limit = PAPER.get(name)
        paper = (str(limit.logic), str(limit.functions)) if limit is not None else ("-", "-")
        verdict = "-" if limit is None else f"{limit.times:g}x {'kept' if count.within(limit) else 'EXCEEDED'}"
        ours = f"{count.logic:>6}{paper[0]:>7}{count.functions:>11}{paper[1]:>7}{count.declarations:>10}"
        lines.append(f"{name:<12}{ours}  {verdict}")
    return lines

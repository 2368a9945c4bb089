"""What variables are after the two sides of an `if`."""

from __future__ import annotations

from casync.compll import typed
from casync.compll.ir.arrays import Arrays
from casync.compll.ir.graph import INT, Domain, Memory, Value
from casync.compll.ir.program import Block, needs

__all__ = ["Merge"]


Side = tuple[Block, dict[int, Value]]
"""What is done there, and what is stored by then."""


class Merge:
    """`merged`: what becomes one, as in a Branch."""

    def __init__(self, lowering: Arrays, condition: Value, then: Side, otherwise: Side) -> None:
        self.merged: list[tuple[Value | Memory, Value | Memory, Value | Memory]] = []
        self._lowering, self._condition = lowering, condition
        self._sides = (then, otherwise)
        self._inside = {*then[0].makes, *otherwise[0].makes}
        self._done: dict[tuple[int, int], Value] = {}
        self._domains: dict[tuple[int, int], Domain] = {}

    def one(self, yes: Value, no: Value, at: typed.Statement) -> Value:
        if yes is no:
            return yes
        key = (yes.number, no.number)
        if key not in self._done:
            self._done[key] = self._merge(yes, no, at)
        return self._done[key]

    def _merge(self, yes: Value, no: Value, at: typed.Statement) -> Value:
        lowering, graph = self._lowering, self._lowering.graph
        if yes.domain is no.domain and not self._inside.intersection(needs([yes, no])):
            return lowering.choose(self._condition, yes, no)
        if (yes.domain is None) != (no.domain is None):
            raise lowering.not_yet("a variable that is an array on one side of an `if`", at)
        if yes.domain is None:
            merged = graph.result(yes.kind)
            self.merged.append((merged, yes, no))
            return merged
        loads = [lowering.in_memory_of(side, value) for side, value in zip(self._sides, (yes, no), strict=True)]
        if loads[0].stored != loads[1].stored:
            raise lowering.not_yet("an array of different types on the sides of an `if`", at)
        if loads[0].place == "state":
            raise lowering.not_yet("a state that is assigned inside of an `if`", at)
        memory = graph.memory("either", loads[0].stored, self._domain(yes.domain, no.domain))
        self.merged.append((memory, loads[0], loads[1]))
        return lowering.loaded(memory, yes)

    def _domain(self, yes: Domain | None, no: Domain | None) -> Domain:
        assert yes is not None and no is not None
        if yes is no:
            return yes
        key = (id(yes), id(no))
        if key not in self._domains:
            lengths = self._lowering.length(yes), self._lowering.length(no)
            count = self._lowering.graph.result(INT)
            self.merged.append((count, *lengths))
            self._domains[key] = Domain(count)
        return self._domains[key]

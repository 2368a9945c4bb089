"""Values of one unit: a graph of operations in which equal ones are made once.

An array is never a memory here but the value of one of its elements, so a map costs nothing until something consumes
it. What consumes values, and the memories that are needed in between, are the steps of program.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BIT", "FLOAT", "FLOATS", "INT", "UNIT", "Domain", "Graph", "Memory", "Value", "walk"]

FLOAT, INT, BIT = "float", "int", "bit"
FLOATS = ("f32", "f16", "bf16")
"""Ways in which a float is stored; bf16 is a bfloat16."""


@dataclass(frozen=True, eq=False)
class Domain:
    """What the arrays of one length run over. Chunks: one element for each `chunk` elements of `parent`."""

    length: Value | None = None  # of the unit: None
    parent: Domain | None = None
    chunk: Value | None = None


UNIT = Domain()


@dataclass(frozen=True, eq=False)
class Memory:
    """An array that is somewhere. `stored`: one of FLOATS, i32, i8, u16, u8, or u1, u2, u4 packed. `place`: scratch,
    state (of `name`), payload (item `name`), received (the aggregated values of round `name`), or either (what a branch
    leaves).
    """

    place: str
    stored: str
    domain: Domain
    number: int
    name: Any = None
    padded: bool = False  # filled up to a power of two


@dataclass(frozen=True, eq=False)
class Value:
    """One operation. `domain`: of what array it is an element; None: a single value of the unit. Leaves are

    - constant, parameter, size, fact (rows, cols, step, ...), state, field (of the payload), received: single values
    - result: a single value that a step of the program computes
    - gradient, index (the element's number), code (of the payload of a quantiser), load (of a memory): elements

    `pick` is an element of the memory `data` at the place its operand says, `spread` gives the value of a chunk to its
    elements, `same` a single value to all; the rest is arithmetic.
    """

    op: str
    operands: tuple[Value, ...]
    kind: str
    domain: Domain | None
    data: Any
    number: int

    @property
    def lanes(self) -> bool:
        return self.domain is not None


@dataclass
class Graph:
    """Makes values, each once, and memories."""

    _known: dict[Any, Value] = field(default_factory=dict)
    _memories: int = 0

    def make(self, op: str, operands: Sequence[Value] = (), kind: str = FLOAT, data: Any = None,
             domain: Domain | None = None) -> Value:  # fmt: skip
        """An operation on elements is in their domain."""
        if domain is None:
            domain = next((operand.domain for operand in operands if operand.domain is not None), None)
        key = (op, tuple(v.number for v in operands), kind, data, repr(data), domain)
        if key not in self._known:
            self._known[key] = Value(op, tuple(operands), kind, domain, data, len(self._known))
        return self._known[key]

    def constant(self, value: float | int, kind: str = INT) -> Value:
        return self.make("constant", kind=kind, data=value)

    def result(self, kind: str) -> Value:
        """Something new, which a step will compute."""
        return self.make("result", kind=kind, data=len(self._known))

    def memory(self, place: str, stored: str, domain: Domain, name: Any = None, padded: bool = False) -> Memory:
        self._memories += 1
        return Memory(place, stored, domain, self._memories, name, padded)

    def load(self, memory: Memory) -> Value:
        kind = FLOAT if memory.stored in FLOATS else BIT if memory.stored == "u1" else INT
        return self.make("load", kind=kind, data=memory, domain=memory.domain)

    def replace(self, value: Value, known: dict[int, Value]) -> Value:
        """The value with others in place of some of those that it is made of."""
        done = dict(known)
        for part in walk([value]):
            if part.number not in done:
                operands = [done[operand.number] for operand in part.operands]
                same = all(new is old for new, old in zip(operands, part.operands, strict=True))
                done[part.number] = part if same else self._again(part, operands)
        return done[value.number]

    def _again(self, value: Value, operands: list[Value]) -> Value:
        domain = value.domain if value.op in ("spread", "same") else None
        return self.make(value.op, operands, value.kind, value.data, domain)


def walk(values: Iterable[Value]) -> list[Value]:
    """The values and all they are made of, operands first."""
    seen: dict[int, Value] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value.number not in seen:
            seen[value.number] = value
            waiting.extend(value.operands)
    return sorted(seen.values(), key=lambda value: value.number)

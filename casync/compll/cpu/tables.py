"""Values that are looked up in a table instead of computed for each element, because they repeat with small chunks.

- `periodic`: values that depend only on an element's position in its chunk of C elements. 16 C of them are computed
  once for a unit.
- `byte_table`: what decode makes of an element, if that depends only on its position in the chunk and on the chunk's
  byte. The table has a value for each position and byte. If a value that fits into a byte decides the result, the table
  holds that value.
- `code_tables`: what each byte stands for, where bytes stand for runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from casync.compll.cpu.values import elements_inside
from casync.compll.ir.coded import PackedRuns, UnpackedRuns
from casync.compll.ir.graph import FLOAT, Memory, Value
from casync.compll.ir.program import Call

__all__ = ["ByteTable", "CodeTable", "byte_table", "code_tables", "periodic"]

_LONGEST = 8  # elements of a chunk in a table of bytes


def periodic(inside: Iterable[Value]) -> dict[int, list[Value]]:
    """The elements that repeat, by the constant C of `index % C`, where more is computed than that remainder."""
    found: dict[int, list[Value]] = {}
    period: dict[int, int] = {}
    for value in inside:
        by = _position(value)
        if by is None:
            lanes = [operand for operand in value.operands if operand.lanes]
            periods = {period.get(operand.number) for operand in lanes}
            by = periods.pop() if lanes and len(periods) == 1 and value.op != "pick" else None
        if by is not None:
            period[value.number] = by
            found.setdefault(by, []).append(value)
    return {by: values for by, values in found.items() if len(values) > 1}


@dataclass(frozen=True)
class ByteTable:
    """`value` for each position and byte, which are the values `positions` and `bytes_`."""

    memory: Memory
    chunk: int
    positions: frozenset[int]
    bytes_: frozenset[int]
    value: Value

    @property
    def stored(self) -> str:
        return "f32" if self.value.kind == FLOAT else "i8"


def byte_table(result: Value) -> ByteTable | None:
    """If the elements depend on nothing but index % C and the byte at index / C."""
    inside = elements_inside([result])
    positions, bytes_, sources, chunks = set(), set(), set(), set()
    for value in inside:
        if (by := _position(value)) is not None:
            positions.add(value.number)
            chunks.add(by)
        elif value.op == "pick" and isinstance(value.data, Memory) and value.data.stored == "u8":
            (index,) = value.operands
            if index.op != "/" or index.operands[0].op != "index" or index.operands[1].op != "constant":
                return None
            bytes_.add(value.number)
            sources.add(value.data)
            chunks.add(index.operands[1].data)
        elif value.op in ("gradient", "load", "pick", "spread"):
            return None
    if len(sources) != 1 or len(chunks) != 1 or not 1 < max(chunks) <= _LONGEST:
        return None
    known = positions | bytes_
    value = next((v for v in inside if _in_byte(v) and _decides(v, result, known)), result)
    numbers = {v for v in inside if v.op == "index" or (v.op == "/" and v.operands[0].op == "index")}
    computed = [v for v in elements_inside([value]) if v.number not in known and v not in numbers]
    if any(operand in numbers for v in computed for operand in v.operands):
        return None  # it depends on the chunk's number
    return ByteTable(sources.pop(), chunks.pop(), frozenset(positions), frozenset(bytes_), value)


def _in_byte(value: Value) -> bool:
    """A remainder, which is between -128 and 127."""
    by = value.operands[1] if value.op == "%" else None
    return by is not None and by.op == "constant" and 0 < by.data <= 128


def _decides(value: Value, result: Value, known: set[int]) -> bool:
    """Whether `result` is made of it and of nothing else that varies."""
    others = elements_inside([result], stop={value.number})
    return value.number not in known and value in others and not known.intersection(v.number for v in others)


@dataclass(frozen=True)
class CodeTable:
    """A table of `value` for each byte. The byte stands for those `known` values for which no other is given."""

    name: str
    value: Value
    known: dict[Value, Value | None]
    stored: str = "u8"


def code_tables(call: Call) -> list[CodeTable]:
    """Return the tables of a call. A runlength's say what each length and each other byte becomes, a repeat's what each
    byte stands for.
    """
    made, runs = call.makes[0], call.data
    if isinstance(runs, PackedRuns):
        return [CodeTable(f"alone{made.number}", runs.alone, {runs.head: None}),
                CodeTable(f"run{made.number}", runs.code, {runs.head: call.scalars[0], runs.length: None})]  # fmt: skip
    if isinstance(runs, UnpackedRuns):
        return [CodeTable(f"value{made.number}", runs.value, {runs.code: None}),
                CodeTable(f"count{made.number}", runs.count, {runs.code: None}, "i32")]  # fmt: skip
    return []


def _position(value: Value) -> int | None:
    """C of index % C."""
    if value.op == "%" and value.operands[0].op == "index" and value.operands[1].op == "constant":
        by = int(value.operands[1].data)
        return by if 1 < by <= 16 else None
    return None

"""The C++ of calls of operators over whole arrays (codec/cuda/kernels/operators/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from casync.compll.ir.graph import Memory
from casync.compll.ir.program import Call

__all__ = ["call_text"]


def call_text(
    call: Call, lengths: Sequence[str], scalars: Sequence[str], functions: Sequence[str], failed: str
) -> list[str]:
    """`lengths` of its arrays; `scalars` by name; `functions` of its runs; `failed` leaves the function."""
    arrays = [f"m{memory.number}" for memory in call.arrays]
    made = [f"m{one.number}" if isinstance(one, Memory) else f"v{one.number}" for one in call.makes]
    return _TEXTS[call.operator](call, [*arrays, *lengths, *scalars, *functions], made, failed)


def _nth(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, position = given
    function = "nth_largest" if call.data == "greater" else "nth_smallest"
    return [f"{made[0]} = {function}(team, work, {array}, {length}, {position});"]


def _sort(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length = given
    descending = str(call.data == "greater").lower()
    return [f"stable_sort<{descending}>(team, {array}, {length}, {made[0]}, {made[1]});"]


def _topk(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, wanted = given
    *count, index, values, _, _ = made
    text = f"topk(team, work, {array}, {length}, {wanted}, {index}, {values})"
    return [f"{count[0]} = static_cast<std::int32_t>({text});" if count else f"{text};"]


def _runlength(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, value, longest, put = given
    count = made[0]
    text = f"runlength(team, {array}, {length}, {value}, {longest}, {put})"
    return [f"{count} = static_cast<std::int32_t>({text});"]


def _repeat(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    length, total, value, count = given[-4:]
    return [f"if ({total} > room || !repeat(team, {value}, {count}, {length}, {total}, {made[0]})) {failed}"]


def _scatter(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    index, values, length, _, size = given
    return [f"if (!scatter_array(team, {index}, {values}, {length}, {size}, {made[0]})) {failed}"]


def _matmul(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    left, right, _, _, rows, inner, columns = given
    a, b = (str(turned).lower() for turned in call.data)
    sides = f"matrix({left}, {rows}, {inner}, {a}), matrix({right}, {inner}, {columns}, {b})"
    return [
        f"if (std::int64_t{{{rows}}} * {columns} > room) {failed}",
        f"matmul(team, {sides}, {made[0]});",
    ]


def _orth(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, rows, columns = given
    return [
        f"if ({length} > room) {failed}",
        f"orth(team, work, {array}, {rows}, {columns}, {made[0]}, {made[1]});",
    ]


def _pick(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, index = given
    return [f"{made[0]} = pick({array}, {index}, {length});", "team.barrier();  // before the state changes"]


def _hadamard(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, wanted, chunk = given
    size = f"padded_to_powers_of_two({length}, {chunk})"
    return [
        f"if ({size} > 2 * room || {wanted} > {size}) {failed}",
        f"hadamard(team, {array}, {length}, {chunk}, {made[0]});",
    ]


_TEXTS: dict[str, Callable[[Call, list[str], list[str], str], list[str]]] = {
    "nth": _nth, "sort": _sort, "topk": _topk, "runlength": _runlength, "repeat": _repeat, "matmul": _matmul,
    "orth": _orth, "hadamard": _hadamard, "pick": _pick, "scatter": _scatter,
}  # fmt: skip

"""The C++ of calls of operators over whole arrays (codec/cpu/kernels/operators/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from casync.compll.cpu.products import Product
from casync.compll.ir.coded import PackedRuns, UnpackedRuns
from casync.compll.ir.graph import Memory
from casync.compll.ir.program import Call

__all__ = ["call_text", "matrices", "product_text"]


def call_text(call: Call, lengths: Sequence[str], scalars: Sequence[str], failed: str) -> list[str]:
    """`lengths` of its arrays; `scalars` by name; `failed` leaves the function."""
    arrays = [f"m{memory.number}" for memory in call.arrays]
    made = [f"m{one.number}" if isinstance(one, Memory) else f"v{one.number}" for one in call.makes]
    return _TEXTS[call.operator](call, [*arrays, *lengths, *scalars], made, failed)


def _nth(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, position = given
    function = "nth_largest" if call.data == "greater" else "nth_smallest"
    return [f"{made[0]} = {function}({array}, {length}, {position});"]


def _sort(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length = given
    sorted_, spare = made
    comes_first = "descends" if call.data == "greater" else "ascends"
    return [
        f"__builtin_memcpy({sorted_}, {array}, static_cast<std::size_t>({length}) * sizeof *{array});",
        f"stable_sort({sorted_}, {spare}, {length}, [](auto a, auto b) {{ return {comes_first}(a, b); }});",
    ]


def _topk(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, wanted = given
    index, values, spare_index, spare_values = made[-4:]
    count = f"{made[0]} = static_cast<std::int32_t>(" if len(made) == 5 else ""
    text = f"topk({array}, {length}, {wanted}, {index}, {values}, {spare_index}, {spare_values})"
    return [f"{count}{text}{')' if count else ''};"]


def _runlength(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, value, longest = given
    count, *runs = made
    if isinstance(call.data, PackedRuns):
        meanwhile = f"NextUnit<kFeedback>(job, {length})"
        runs = [f"alone{call.makes[0].number}", f"run{call.makes[0].number}", *runs, meanwhile]
    text = f"runlength({array}, {length}, {value}, {longest}, {', '.join(runs)})"
    return [f"{count} = static_cast<std::int32_t>({text});"]


def _repeat(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    if isinstance(call.data, UnpackedRuns):
        array, length, total = given
        counts = f"value{call.makes[0].number}, count{call.makes[0].number}"
    else:
        array, counts, length, _, total = given
    return [f"if ({total} > room || !repeat({array}, {counts}, {length}, {total}, {made[0]})) {failed}"]


def _scatter(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    index, values, length, _, size = given
    return [f"if (!scatter_array({index}, {values}, static_cast<std::int32_t>({length}), {size}, {made[0]})) {failed}"]


def _matmul(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    left, right, _, _, rows, inner, columns = given
    a, b = matrices(call, left, right, rows, inner, columns)
    return [
        f"if (std::int64_t{{{rows}}} * {columns} > room) {failed}",
        f"if ({rows} > 0 && {inner} > 0 && {columns} > 0)",
        f"  matmul({a}, {b}, {made[0]}, reinterpret_cast<float*>(scratch));",
    ]


def product_text(call: Product, scalars: Sequence[str], failed: str) -> list[str]:
    """Return the lines of a product. They use `element(i, count)` for elements of the gradient, or
    `deliver_element(i, count, value)`.
    """
    rows, _, columns = scalars
    arrays = [f"m{memory.number}" for memory in call.arrays]
    if call.delivers:
        a, b = matrices(call, *arrays, *scalars)
        check = f"if (std::int64_t{{{rows}}} * {columns} != facts.n) {failed}"
        text = f"matmul_into({a}, {b}, reinterpret_cast<float*>(scratch), deliver_element);"
    else:
        (made,) = (f"m{one.number}" for one in call.makes if isinstance(one, Memory))
        a, b = matrices(call, "nullptr", *arrays, *scalars)
        check = f"if (std::int64_t{{{rows}}} * {columns} > room) {failed}"
        text = f"computed_matmul({a}, element, {b}, {made}, reinterpret_cast<float*>(scratch));"
    return [check, f"if ({' && '.join(f'{scalar} > 0' for scalar in scalars)}) {text}"]


def matrices(call: Call, left: str, right: str, rows: str, inner: str, columns: str) -> tuple[str, str]:
    """The two sides of a matmul."""
    a, b = (str(turned).lower() for turned in call.data)
    return f"Matrix{{{left}, {rows}, {inner}, {a}}}", f"Matrix{{{right}, {inner}, {columns}, {b}}}"


def _orth(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, rows, columns = given
    return [f"if ({length} > room) {failed}", f"orth({array}, {rows}, {columns}, {made[0]}, {made[1]});"]


def _pick(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, index = given
    return [f"{made[0]} = pick({array}, {index}, {length});"]


def _hadamard(call: Call, given: list[str], made: list[str], failed: str) -> list[str]:
    array, length, wanted, chunk = given
    size = f"padded_to_powers_of_two({length}, {chunk})"
    return [
        f"if ({size} > 2 * room || {wanted} > {size}) {failed}",
        f"hadamard({array}, {length}, {chunk}, {made[0]});",
    ]


_TEXTS: dict[str, Callable[[Call, list[str], list[str], str], list[str]]] = {
    "nth": _nth, "sort": _sort, "topk": _topk, "runlength": _runlength, "repeat": _repeat, "matmul": _matmul,
    "orth": _orth, "hadamard": _hadamard, "pick": _pick, "scatter": _scatter,
}  # fmt: skip

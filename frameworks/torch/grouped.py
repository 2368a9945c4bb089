"""Operations on several tensors that are submitted together: one handle, one list of results in the order given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.default import session_of
from casync.errors import InvalidArgumentError
from casync.terms import Average, OpKind, resolve_op, tensor_name

from .compression import Compression
from .ops import dtype_name, submit_allgather, submit_allreduce, wants_gradient
from .scatter import check as check_reducescatter
from .scatter import gradient_factor, submit_reducescatter
from .waiting import PendingGroup, synchronize

__all__ = [
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
]

Tensors = Sequence[torch.Tensor]


def _submit(
    tensors: Tensors, kind: int, name: str | None, process_set: Any, submit: Callable[[torch.Tensor, str, bool], int]
) -> int:
    """Submit all under names of the group, of which the last one wakes the runtime."""
    owner = session_of(process_set)
    if len(tensors) == 0:
        raise InvalidArgumentError("a group of no tensors")
    base = tensor_name(owner, kind, name)
    for tensor in tensors:
        dtype_name(tensor)  # a bad one is found before the first is submitted
    handles: list[int] = []
    try:
        for i, tensor in enumerate(tensors):
            handles.append(submit(tensor, f"{base}.{i}", i == len(tensors) - 1))
    except BaseException:
        for handle in handles:
            synchronize(handle)
        raise
    owner.keep(handles[-1], PendingGroup(owner, handles))
    return handles[-1]


def _any_wants_gradient(tensors: Tensors) -> bool:
    return any(wants_gradient(tensor) for tensor in tensors)


# --- allreduce --------------------------------------------------------------------------------------------------------


def _submit_allreduce(
    tensors: Tensors,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: Any,
    compression: Any = None,
    *,
    in_place: bool,
) -> int:
    def submit(tensor: torch.Tensor, each: str, wake: bool) -> int:
        return submit_allreduce(tensor, each, op, scales, process_set, compression, None, in_place, wake)

    return _submit(tensors, OpKind.ALLREDUCE, name, process_set, submit)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors, of any shapes and dtypes, together, with its other arguments; new tensors in the
    order given. Blocks. Differentiable for Sum and Average.
    """
    op = resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    if _any_wants_gradient(tensors):
        from .autograd import HorovodGroupedAllreduce, check_differentiable

        check_differentiable(op)
        run = _blocking(_submit_allreduce, name, op, scales, process_set, compression, in_place=False)
        run_back = _blocking(_submit_allreduce, None, op, scales, process_set, in_place=False)
        return list(HorovodGroupedAllreduce.apply(run, run_back, *tensors))
    result: list[torch.Tensor] = synchronize(
        _submit_allreduce(tensors, name, op, scales, process_set, compression, in_place=False)
    )
    return result


def _blocking(submit: Callable[..., int], *arguments: Any, **options: Any) -> Callable[[Tensors], list[torch.Tensor]]:
    return lambda tensors: synchronize(submit(tensors, *arguments, **options))


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    *,
    compression: Any = None,
) -> int:
    """Submit a group of tensors, with arguments as `allreduce` has them, and return the handle of the group at once.
    The tensors must not change before `synchronize(handle)` returns.
    """
    scales = (prescale_factor, postscale_factor)
    return _submit_allreduce(tensors, name, resolve_op(op, average), scales, process_set, compression, in_place=False)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """`grouped_allreduce`, with its arguments, in place; returns the tensors. Blocks. Not differentiable."""
    scales = (prescale_factor, postscale_factor)
    synchronize(_submit_allreduce(tensors, name, resolve_op(op, average), scales, process_set, in_place=True))
    return list(tensors)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    *,
    compression: Any = None,
) -> int:
    """Submit a group of tensors in place, with arguments as `allreduce` has them, and return the handle of the group at
    once. The tensors are the runtime's until `synchronize(handle)` returns.
    """
    scales = (prescale_factor, postscale_factor)
    return _submit_allreduce(tensors, name, resolve_op(op, average), scales, process_set, compression, in_place=True)


# --- allgather --------------------------------------------------------------------------------------------------------


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: Any = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors together, with its other arguments; new tensors in the order given. Blocks.
    Differentiable.
    """
    if not _any_wants_gradient(tensors):
        result: list[torch.Tensor] = synchronize(grouped_allgather_async(tensors, name, process_set))
        return result
    from .autograd import HorovodGroupedAllgather

    kept = [tensor.shape[0] for tensor in tensors if tensor.is_floating_point()]
    begins: list[int] = []

    def run(tensors: Tensors) -> list[torch.Tensor]:
        owner = session_of(process_set)
        rows = torch.tensor([kept], dtype=torch.int64)
        each = None if name is None else f"{name}.rows"
        all_rows = synchronize(submit_allgather(rows, each, process_set, wake=False))
        begins.extend(all_rows[: owner.rank].sum(0).tolist())
        result: list[torch.Tensor] = synchronize(grouped_allgather_async(tensors, name, process_set))
        return result

    def run_back(gradients: Tensors) -> list[torch.Tensor]:
        means = grouped_allreduce(gradients, op=Average, process_set=process_set)
        return [mean[begin : begin + rows] for mean, begin, rows in zip(means, begins, kept, strict=True)]

    return list(HorovodGroupedAllgather.apply(run, run_back, *tensors))


def grouped_allgather_async(tensors: Tensors, name: str | None = None, process_set: Any = global_process_set) -> int:
    """Submit a group of tensors, with arguments as `allgather` has them, and return the handle of the group at once.
    The tensors must not change before `synchronize(handle)` returns.
    """

    def submit(tensor: torch.Tensor, each: str, wake: bool) -> int:
        return submit_allgather(tensor, each, process_set, wake)

    return _submit(tensors, OpKind.ALLGATHER, name, process_set, submit)


# --- reducescatter ----------------------------------------------------------------------------------------------------


def _submit_reducescatter(
    tensors: Tensors,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: Any,
    compression: Any = None,
) -> int:
    for tensor in tensors:
        check_reducescatter(tensor, op)

    def submit(tensor: torch.Tensor, each: str, wake: bool) -> int:
        return submit_reducescatter(tensor, each, op, scales, process_set, compression, wake=wake)

    return _submit(tensors, OpKind.REDUCESCATTER, name, process_set, submit)


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors, of any shapes and dtypes, together, with its other arguments; new tensors in
    the order given. Blocks. Differentiable.
    """
    scales = (prescale_factor, postscale_factor)
    if not _any_wants_gradient(tensors):
        result: list[torch.Tensor] = synchronize(
            _submit_reducescatter(tensors, name, op, scales, process_set, compression)
        )
        return result
    from .autograd import HorovodGroupedReducescatter

    def run_back(gradients: Tensors) -> list[torch.Tensor]:
        factor = gradient_factor(op, scales, process_set)
        return grouped_allgather([gradient * factor for gradient in gradients], process_set=process_set)

    run = _blocking(_submit_reducescatter, name, op, scales, process_set, compression)
    return list(HorovodGroupedReducescatter.apply(run, run_back, *tensors))


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: Any = None,
) -> int:
    """Submit a group of tensors, with arguments as `reducescatter` has them, and return the handle of the group at
    once. The tensors must not change before `synchronize(handle)` returns.
    """
    scales = (prescale_factor, postscale_factor)
    return _submit_reducescatter(tensors, name, op, scales, process_set, compression)

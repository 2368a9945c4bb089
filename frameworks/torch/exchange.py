"""alltoall: each rank deals out the rows of its tensor to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.default import session_of
from casync.errors import InvalidArgumentError
from casync.session import Session
from casync.terms import OpKind, Terms, tensor_name

from .ops import dtype_name, received, wants_gradient
from .waiting import synchronize

__all__ = ["alltoall", "alltoall_async"]

Splits = torch.Tensor | Sequence[int] | None


class _PendingExchange:
    """An outstanding alltoall: its result is made when it is known how many rows come."""

    __slots__ = ("source", "splits")

    def __init__(self, source: torch.Tensor, splits: Splits) -> None:
        self.source = source
        self.splits = splits

    def finish(self, owner: Session, handle: int) -> tuple[torch.Tensor, torch.Tensor]:
        data, rows, _ = owner.synchronize_gather(handle)
        device = self.splits.device if isinstance(self.splits, torch.Tensor) else None
        return received(data, sum(rows), self.source), torch.tensor(rows, dtype=torch.int32, device=device)


def _counts(splits: Splits, rows: int, owner: Session, name: str) -> list[int]:
    """How many of the `rows` go to each rank."""

    def refuse(text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{text} (tensor {name}, {rows} rows, {owner.size} ranks, on rank {owner.rank})")

    counts = [] if splits is None else _numbers(splits, refuse)
    if not counts:
        if rows % owner.size != 0:
            raise refuse(
                "splits not provided, but first dimension of tensor is not an even multiple of the number of workers: "
                "say with splits how many rows each rank gets"
            )
        return [rows // owner.size] * owner.size
    if len(counts) != owner.size:
        raise refuse(f"Number of entries in splits does not equal number of workers: there are {len(counts)}")
    if min(counts) < 0:
        raise refuse(f"splits {counts} has negative entries")
    if sum(counts) > rows:
        raise refuse(f"Sum of splits entries is greater than the first dimension of tensor: it is {sum(counts)}")
    return counts


def _numbers(splits: torch.Tensor | Sequence[int], refuse: Any) -> list[int]:
    if not isinstance(splits, torch.Tensor):
        if not all(type(entry) is int for entry in splits):
            raise refuse("alltoall expects splits to contain 32-bit integer elements, or a list of int")
        return list(splits)
    if splits.dim() != 1:
        raise refuse(f"alltoall expects a 1D splits tensor, and this one has {splits.dim()} dimensions")
    if splits.dtype != torch.int32 and splits.numel() > 0:
        raise refuse(f"alltoall expects splits to contain 32-bit integer elements, and these are {splits.dtype}")
    return splits.tolist()


def _submit(tensor: torch.Tensor, splits: Splits, name: str | None, process_set: Any, wake: bool) -> int:
    owner = session_of(process_set)
    dtype = dtype_name(tensor)
    if tensor.dim() == 0:
        raise InvalidArgumentError("tried to alltoall a rank-zero tensor, which has no rows: reshape it to (1,)")
    name = tensor_name(owner, OpKind.ALLTOALL, name)
    counts = _counts(splits, tensor.shape[0], owner, name)
    registration = Terms(name, OpKind.ALLTOALL, dtype, tensor.shape[1:]).register(owner)
    source = tensor.detach().contiguous()
    keep = _PendingExchange(source, splits)
    return owner.submit(registration, source.data_ptr(), 0, keep, wake=wake, splits=counts)


def alltoall(
    tensor: torch.Tensor, splits: Splits = None, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """The rows that all ranks have for this one, in rank order, as a new tensor. Blocks. Differentiable.

    Args:
        tensor: its rows are dealt out to the ranks in their order; dtype and all dimensions but the first must be alike
            on all ranks.
        splits: how many rows go to each rank, 0 included: a tensor of int32, or a list. Rows beyond them go nowhere.
            None: the same number to each.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        process_set: the ranks that take part; all by default.

    Returns the tensor, and, if `splits` is given, how many of its rows came from each rank, as a tensor of int32.
    """
    if wants_gradient(tensor):
        from .autograd import HorovodAlltoall

        output, counts = HorovodAlltoall.apply(tensor, splits, name, process_set)
    else:
        output, counts = synchronize(_submit(tensor, splits, name, process_set, wake=False))
    return output if splits is None else (output, counts)


def alltoall_async(
    tensor: torch.Tensor, splits: Splits = None, name: str | None = None, process_set: Any = global_process_set
) -> int:
    """Submit an alltoall, with arguments as `alltoall` has them, and return its handle at once, whose `synchronize`
    gives output and received splits, also without `splits`. `tensor` must not change before it returns.
    """
    return _submit(tensor, splits, name, process_set, wake=True)

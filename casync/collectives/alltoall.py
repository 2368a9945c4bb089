"""alltoall: each rank deals out the rows of its tensor to all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from casync.collectives.waiting import PendingRows
from casync.errors import InvalidArgumentError
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import OpKind, OpSignature, no_rows

__all__ = ["submit", "terms_of"]


class _Pending(PendingRows[T], Generic[T]):
    """Its output is the rows, and how many came from each rank."""

    __slots__ = ("splits",)

    def __init__(self, tensors: Tensors[T], source: T, splits: Any) -> None:
        super().__init__(tensors, source)
        self.splits = splits

    def finish(self, owner: Session, handle: int) -> tuple[T, T]:
        output, rows = self.rows(owner, handle)
        return output, self.tensors.from_ints(rows, self.splits)


def submit(
    tensors: Tensors[T], tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, *, wake: bool = True
) -> int:
    """The handle of an alltoall; arguments as `Collectives.alltoall` has them."""
    owner = session_of(process_set)
    with about(name):
        tensor = tensors.admit(tensor)
    terms, counts = terms_of(tensors, owner, tensor, splits, name)
    source = tensors.contiguous(tensor)
    device, address = tensors.device(source), tensors.address(source)
    keep = _Pending(tensors, source, splits)
    return owner.submit(owner.register(terms), address, 0, keep, wake=wake, splits=counts, device=device)


def terms_of(
    tensors: Tensors[T], owner: Session, tensor: T, splits: Any, name: str | None
) -> tuple[OpSignature, list[int]]:
    """Return what the ranks must agree on, and how many rows go to each; `Tensors.admit` has accepted `tensor`."""
    with about(name):
        dtype, shape = tensors.dtype(tensor), tensors.shape(tensor)
        if not shape:
            raise no_rows(OpKind.ALLTOALL)
    full, on_device = owner.tensor_name(OpKind.ALLTOALL, name), tensors.device(tensor) is not None
    counts = _counts(splits, shape[0], owner, full)
    return OpSignature(full, OpKind.ALLTOALL, dtype, shape[1:], on_device=on_device), counts


def _counts(splits: Any, rows: int, owner: Session, name: str) -> list[int]:
    """Return how many of the `rows` go to each rank."""

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


def _numbers(splits: Any, refuse: Callable[[str], InvalidArgumentError]) -> list[int]:
    """The entries of `splits`: a list of int, or what has a shape, a dtype and `tolist`, as tensors do, or makes an
    array of itself that has.
    """
    if not hasattr(splits, "tolist") and hasattr(splits, "numpy"):
        splits = splits.numpy()
    if not hasattr(splits, "tolist"):
        if not isinstance(splits, Sequence) or not all(type(entry) is int for entry in splits):
            raise refuse("alltoall expects splits to contain 32-bit integer elements, or a list of int")
        return list(splits)
    if len(splits.shape) != 1:
        raise refuse(f"alltoall expects a 1D splits tensor, and this one has {len(splits.shape)} dimensions")
    if not str(splits.dtype).endswith("int32") and len(splits) > 0:
        raise refuse(f"alltoall expects splits to contain 32-bit integer elements, and these are {splits.dtype}")
    counts: list[int] = splits.tolist()
    return counts

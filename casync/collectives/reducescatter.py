"""reducescatter: the sum over all ranks, of which each keeps its share of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casync.codecs.specs import CompressionLike
from casync.collectives.allreduce import codec_of
from casync.collectives.waiting import PendingResult
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import Average, OpKind, OpSignature, Sum, no_rows, resolve_op

__all__ = ["check", "check_op", "gradient_factor", "shape_of_share", "submit", "terms_of"]


def check(tensors: Tensors[T], tensor: Any, op: int) -> T:
    """The tensor that is meant, if it can be reduced and scattered. Raises for one that cannot."""
    admitted = tensors.admit(tensor)
    if tensors.dtype(admitted) == "bool":
        raise InvalidArgumentError("bool cannot be reduced: use uint8")
    if not tensors.shape(admitted):
        raise no_rows(OpKind.REDUCESCATTER)
    check_op(op)
    return admitted


def check_op(op: int) -> None:
    """Raise `NotAvailableError` for a reduction that reducescatter does not do."""
    if resolve_op(op, None) not in (Average, Sum):
        raise NotAvailableError("reducescatter takes op Sum or Average; for the others allreduce, and take your rows")


def gradient_factor(op: int, scales: tuple[float, float], process_set: ProcessSet) -> float:
    """Return the factor by which the gathered gradients of the results are multiplied. It is Horovod's convention: it
    fits a loss that is the mean over ranks.
    """
    return scales[0] * scales[1] * (session_of(process_set).size if op == Sum else 1)


def submit(
    tensors: Tensors[T],
    tensor: Any,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
    compression: CompressionLike = None,
    *,
    wake: bool = True,
) -> int:
    """The handle of a reducescatter; arguments as `Collectives.reducescatter` has them."""
    owner = session_of(process_set)
    with about(name):
        tensor = check(tensors, tensor, op)
    registration = owner.register(terms_of(tensors, owner, tensor, name, op, scales, compression))
    source = tensors.contiguous(tensor) if scales[0] == 1.0 else tensors.scaled(tensor, scales[0])
    result = tensors.empty(shape_of_share(owner, tensors.shape(tensor)), source)
    keep = PendingResult(tensors, source, result, None, scales[1])
    device = tensors.device(source, result)
    addresses = tensors.address(source), tensors.address(result)
    return owner.submit(registration, *addresses, keep, wake=wake, device=device)


def shape_of_share(owner: Session, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the share that this rank keeps of a tensor of this shape."""
    rows, longer = divmod(shape[0], owner.size)
    return (rows + (owner.rank < longer), *shape[1:])


def terms_of(
    tensors: Tensors[T],
    owner: Session,
    tensor: T,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    compression: CompressionLike,
) -> OpSignature:
    """Return what the ranks must agree on; `tensor` has passed `check`."""
    full, on_device = owner.tensor_name(OpKind.REDUCESCATTER, name), tensors.device(tensor) is not None
    dtype, shape = tensors.dtype(tensor), tensors.shape(tensor)
    codec = codec_of(compression, full, shape)
    return OpSignature(full, OpKind.REDUCESCATTER, dtype, shape, op, 0, *scales, codec, on_device=on_device)

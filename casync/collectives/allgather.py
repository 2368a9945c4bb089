"""allgather: the rows of all ranks, one after the other."""

from __future__ import annotations

from typing import Any

from casync.collectives.waiting import PendingRows
from casync.default import session_of
from casync.tensors import T, Tensors
from casync.terms import OpKind, Terms, no_rows, tensor_name

__all__ = ["submit"]


def submit(tensors: Tensors[T], tensor: Any, name: str | None, process_set: Any, *, wake: bool = True) -> int:
    """The handle of an allgather; arguments as `Collectives.allgather` has them."""
    owner = session_of(process_set)
    tensor = tensors.admit(tensor)
    dtype, shape = tensors.dtype(tensor), tensors.shape(tensor)
    if not shape:
        raise no_rows(OpKind.ALLGATHER)
    source = tensors.contiguous(tensor)
    device = tensors.device(source)
    full = tensor_name(owner, OpKind.ALLGATHER, name)
    registration = Terms(full, OpKind.ALLGATHER, dtype, shape[1:], on_device=device is not None).register(owner)
    keep = PendingRows(tensors, source)
    return owner.submit(registration, tensors.address(source), 0, keep, rows=shape[0], wake=wake, device=device)

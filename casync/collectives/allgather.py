"""allgather: the rows of all ranks, one after the other."""

from __future__ import annotations

from typing import Any

from casync.collectives.waiting import PendingRows
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import OpKind, OpSignature, no_rows

__all__ = ["gathered", "submit", "terms_of"]


def submit(
    tensors: Tensors[T],
    tensor: Any,
    name: str | None,
    process_set: ProcessSet,
    *,
    wake: bool = True,
    meets: str | None = None,
) -> int:
    """The handle of an allgather; arguments as `Collectives.allgather` has them. `meets`: the session's name for it, in
    place of `name`.
    """
    owner = session_of(process_set)
    with about(name):
        tensor = tensors.admit(tensor)
    terms = terms_of(tensors, owner, tensor, name)
    registration = owner.register(terms if meets is None else terms._replace(name=meets))
    source = tensors.contiguous(tensor)
    device, rows = tensors.device(source), tensors.shape(source)[0]
    keep = PendingRows(tensors, source)
    return owner.submit(registration, tensors.address(source), 0, keep, rows=rows, wake=wake, device=device)


def gathered(tensors: Tensors[T], tensor: Any, name: str | None, process_set: ProcessSet) -> tuple[T, list[int]]:
    """Return the rows of all ranks, and how many came from each. Blocks."""
    owner, handle = session_of(process_set), submit(tensors, tensor, name, process_set, wake=False)
    pending: PendingRows[T] = owner.kept(handle)
    return pending.rows(owner, handle)


def terms_of(tensors: Tensors[T], owner: Session, tensor: T, name: str | None) -> OpSignature:
    """Return what the ranks must agree on for `tensor`, which `Tensors.admit` has accepted."""
    with about(name):
        dtype, shape = tensors.dtype(tensor), tensors.shape(tensor)
        if not shape:
            raise no_rows(OpKind.ALLGATHER)
    full, on_device = owner.tensor_name(OpKind.ALLGATHER, name), tensors.device(tensor) is not None
    return OpSignature(full, OpKind.ALLGATHER, dtype, shape[1:], on_device=on_device)

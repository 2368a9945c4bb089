"""broadcast: one rank's tensor, on every rank."""

from __future__ import annotations

from typing import Any

from casync.collectives.allreduce import UNSCALED, submit_registered
from casync.collectives.waiting import PendingResult
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import OpKind, OpSignature, Sum

__all__ = ["submit", "terms_of"]


def submit(
    tensors: Tensors[T],
    tensor: Any,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool,
    wake: bool = True,
) -> int:
    """The handle of a broadcast; arguments as `Collectives.broadcast` has them."""
    owner = session_of(process_set)
    with about(name):
        tensor = tensors.admit(tensor)
        if in_place:
            tensors.check_in_place(tensor)
    registration = owner.register(terms_of(tensors, owner, tensor, root_rank, name, process_set))
    if in_place:
        return submit_registered(tensors, owner, registration, tensor, UNSCALED, in_place=True, wake=wake)
    copy = tensors.copy(tensor)  # on which it works in place
    address = tensors.address(copy)
    keep = PendingResult(tensors, copy, copy, None)
    return owner.submit(registration, address, address, keep, wake=wake, device=tensors.device(copy))


def terms_of(
    tensors: Tensors[T], owner: Session, tensor: T, root_rank: int, name: str | None, process_set: ProcessSet
) -> OpSignature:
    """Return what the ranks must agree on for `tensor`, which `Tensors.admit` has accepted."""
    full, root = owner.tensor_name(OpKind.BROADCAST, name), process_set.root(root_rank)
    with about(name):
        dtype, shape = tensors.dtype(tensor), tensors.shape(tensor)
    return OpSignature(full, OpKind.BROADCAST, dtype, shape, Sum, root, on_device=tensors.device(tensor) is not None)

"""Waiting for operations: what a handle stands for, and how to get from it to a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.default import owner_of, session_of
from casync.errors import CasyncError
from casync.session import Session
from casync.terms import OpKind, Terms

from .scaling import scaled

__all__ = ["Pending", "PendingGroup", "barrier", "finish", "poll", "synchronize"]


class Pending:
    """The tensors of an outstanding operation that does not just work in place on one. `target` is where the result,
    times `postscale`, must be copied to, if it is not there already.
    """

    __slots__ = ("postscale", "result", "source", "target")

    def __init__(
        self, source: torch.Tensor, result: torch.Tensor, target: torch.Tensor | None, postscale: float = 1.0
    ) -> None:
        self.source = source
        self.result = result
        self.target = target
        self.postscale = postscale

    def finish(self, owner: Session, handle: int) -> torch.Tensor:
        owner.synchronize(handle)
        result = self.result if self.postscale == 1.0 else scaled(self.result, self.postscale)
        if self.target is None:
            return result
        with torch.no_grad():
            return self.target.copy_(result)


class PendingGroup:
    """The members of an outstanding group, kept in the place of the last one, whose handle is the group's."""

    __slots__ = ("members", "results")

    def __init__(self, owner: Session, handles: Sequence[int]) -> None:
        self.members = [(handle, owner.kept(handle)) for handle in handles]
        self.results: list[Any] = []

    def done(self, owner: Session) -> bool:
        return all(owner.poll(handle) for handle, _ in self.members)

    def finish(self, owner: Session, handle: int) -> list[Any]:
        """Waits for all before it raises the first failure. After Ctrl-C those that are left are still outstanding."""
        failure: CasyncError | None = None
        while self.members:
            member, pending = self.members[0]
            try:
                self.results.append(finish(owner, member, pending))
            except CasyncError as error:
                failure = failure or error
            del self.members[0]
        if failure is not None:
            raise failure
        return self.results


def finish(owner: Session, handle: int, pending: Any) -> Any:
    """Wait for one operation; its output."""
    if isinstance(pending, torch.Tensor):  # in place
        owner.synchronize(handle)
        return pending
    return pending.finish(owner, handle)


def barrier(process_set: Any = global_process_set) -> None:
    """Wait until every rank of `process_set` (all by default) is here. Does not wait for operations that are
    outstanding.
    """
    owner = session_of(process_set)
    registration = Terms("barrier", OpKind.BARRIER, "uint8", (0,)).register(owner)
    owner.synchronize(owner.submit(registration, 0, 0, None, wake=False))


def poll(handle: int) -> bool:
    """Whether `synchronize(handle)` would return, or raise, at once."""
    owner = owner_of(handle)
    pending = owner.kept(handle)
    return pending.done(owner) if isinstance(pending, PendingGroup) else owner.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its output: a tensor, a list of them for a group, output and received splits for
    an alltoall; None for a handle that was synchronised before.

    Raises what ended it: `MismatchError`, `StallError`, `PeerFailureError`, `AbortedError`, `CorruptPayloadError`, all
    `HorovodInternalError`.
    Ctrl-C interrupts the wait; the operation is then still outstanding.
    """
    owner = owner_of(handle)
    pending = owner.kept(handle)
    if type(pending) is torch.Tensor:  # in place
        return owner.synchronize(handle)
    return None if pending is None else finish(owner, handle, pending)

"""Waiting for operations: what a handle stands for, and how to get from it to a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic

from casync.session.default import GLOBAL_PROCESS_SET, owner_of, session_of
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors
from casync.tensors.signature import OpKind, OpSignature

__all__ = [
    "Pending",
    "PendingGroup",
    "PendingResult",
    "PendingRows",
    "barrier",
    "finish",
    "poll",
    "synchronize",
    "synchronize_each",
]


class Pending:
    """The record of an outstanding operation that does not just work in place on a tensor. It is no ABC, because every
    wait asks for its class, and that takes several times as long with an ABC.
    """

    __slots__ = ()

    def done(self, owner: Session, handle: int) -> bool:
        """Whether `finish` would return, or raise, at once."""
        return owner.poll(handle)

    def finish(self, owner: Session, handle: int) -> Any:
        """Wait for the operation, and return its output."""
        raise NotImplementedError


class PendingResult(Pending, Generic[T]):
    """The record of an operation with one result, which goes to `target`, times `postscale`, if not there already."""

    __slots__ = ("postscale", "result", "source", "target", "tensors")

    def __init__(self, tensors: Tensors[T], source: T, result: T, target: T | None, postscale: float = 1.0) -> None:
        self.tensors = tensors
        self.source = source
        self.result = result
        self.target = target
        self.postscale = postscale

    def finish(self, owner: Session, handle: int) -> T:
        owner.synchronize(handle)
        result = self.result if self.postscale == 1.0 else self.tensors.scaled(self.result, self.postscale)
        if self.target is None:
            return result
        self.tensors.assign(self.target, result)
        return self.target


class PendingRows(Pending, Generic[T]):
    """The record of an allgather or alltoall. Its result is made when it is known how many rows each rank sends."""

    __slots__ = ("source", "tensors")

    def __init__(self, tensors: Tensors[T], source: T) -> None:
        self.tensors = tensors
        self.source = source

    def finish(self, owner: Session, handle: int) -> Any:
        return self.rows(owner, handle)[0]

    def rows(self, owner: Session, handle: int) -> tuple[T, list[int]]:
        """The rows of all ranks, and how many came from each."""
        data, rows, _ = owner.synchronize_gather(handle)
        shape = (sum(rows), *self.tensors.shape(self.source)[1:])
        return self.tensors.from_bytes(data, shape, self.source), rows


class PendingGroup(Pending):
    """The members of an outstanding group, kept in the place of the last one, whose handle is the group's."""

    __slots__ = ("members", "results")

    def __init__(self, owner: Session, handles: Sequence[int]) -> None:
        self.members = [(handle, owner.kept(handle)) for handle in handles]
        self.results: list[Any] = []

    def done(self, owner: Session, handle: int) -> bool:
        return all(owner.poll(member) for member, _ in self.members)

    def finish(self, owner: Session, handle: int) -> list[Any]:
        """Waits for all before it raises the first failure. After Ctrl-C those that are left are still outstanding."""
        failure: Exception | None = None
        while self.members:
            member, pending = self.members[0]
            try:
                self.results.append(finish(owner, member, pending))
            except Exception as error:  # a framework's own too: its tensor may not take the result
                failure = failure or error
            del self.members[0]
        if failure is not None:
            raise failure
        return self.results


def finish(owner: Session, handle: int, pending: Any) -> Any:
    """Wait for one operation; its output. What is kept for one that works in place is its tensor."""
    return pending.finish(owner, handle) if isinstance(pending, Pending) else owner.synchronize(handle)


def barrier(process_set: ProcessSet = GLOBAL_PROCESS_SET) -> None:
    """Wait until every rank of `process_set` (all by default) is here. Does not wait for operations that are
    outstanding.
    """
    owner = session_of(process_set)
    registration = owner.register(OpSignature("barrier", OpKind.BARRIER, "uint8", (0,)))
    owner.synchronize(owner.submit(registration, 0, 0, None, wake=False))


def poll(handle: int) -> bool:
    """Whether `synchronize(handle)` would return, or raise, at once."""
    owner = owner_of(handle)
    pending = owner.kept(handle)
    return pending.done(owner, handle) if isinstance(pending, Pending) else owner.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its output: a tensor, a list of them for a group, output and received splits for
    an alltoall; None for a handle that was synchronised before.

    Raises what ended it: `MismatchError`, `StallError`, `PeerFailureError`, `AbortedError`, `CorruptPayloadError`, all
    `HorovodInternalError`.
    Ctrl-C interrupts the wait; the operation is then still outstanding.
    """
    owner = owner_of(handle)
    pending = owner.kept(handle)
    if isinstance(pending, Pending):
        return pending.finish(owner, handle)
    return None if pending is None else owner.synchronize(handle)


def synchronize_each(handles: Iterable[int]) -> list[Any]:
    """`synchronize` all, in their order, and then raise the first failure. `handles` may submit them one after the
    other: when that fails, those that were submitted are waited for too. So whatever fails, no name stays taken.
    """
    submitted: list[int] = []
    results: list[Any] = []
    failure: Exception | None = None
    try:
        for handle in handles:
            submitted.append(handle)  # one by one: extend() would lose them when the next one fails
    except Exception as error:
        failure = error
    for handle in submitted:
        try:
            results.append(synchronize(handle))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results

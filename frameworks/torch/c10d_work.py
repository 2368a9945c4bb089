"""The work that a call of a process group returns: see `c10d`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
from casync.errors import CasyncError, StallError
from casync.session.completion_group import CompletionGroup
from torch._C._distributed_c10d import Work

from . import device
from .c10d_backward import raise_after_backward
from .c10d_futures import GroupFuture
from .flight_recorder import Entry, recorder

__all__ = ["GroupWork", "all_of", "follow"]


class GroupWork(Work):
    """One call that was submitted. Any thread may wait for it."""

    def __init__(self, kind: str, result: Any, finish: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.kind = kind
        """The kind of the call, for messages."""
        self.name = ""
        """The name of its first operation, which is alike on all ranks."""
        self._result = result
        self._finish = finish
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None  # once somebody wants it
        self._listeners: list[Callable[[], None]] = []
        self._is_told = False
        self.ended = threading.Event()
        self.together: CompletionGroup | None = None
        """The operations, while they last. A thread that waits for them makes progress meanwhile."""
        self.entry: Entry | None = None
        self.is_reducer = False
        """Whether DDP's own reducer has called."""
        self.number = 0
        """The call's number among those of the group; 0: a callback has called."""
        self.began = time.monotonic()
        self.thread: int = threading.get_ident()
        self.detail = ""
        """Text for messages, on what the call's sizes do not say."""
        self.translate: Callable[[BaseException | None], BaseException | None] = lambda error: error

    def tells(self, entry: Entry) -> None:
        """Note that Flight Recorder's `entry` is of this call."""
        self.entry = entry
        if self.ended.is_set():
            entry.is_over(self._error)

    def refused(self, error: CasyncError) -> None:
        """Note that an operation could not be submitted; others may have been."""
        self._error = error

    def over(self, error: BaseException | None) -> None:
        """Note that what was submitted has ended."""
        error = self._error or self.translate(error)
        if error is None and self._finish is not None:
            try:
                self._finish()
                device.await_all(self._result)  # what it has begun there
            except BaseException as raised:
                error = raised
        self._finish = self.together = None  # they hold this work in their turn
        self._error = error
        with self._lock:
            self.ended.set()
            future, listeners = self._future, self._listeners
            self._listeners = []
        if self.entry is not None:
            self.entry.is_over(error)
        if error is not None:
            recorder.dump_if_wanted()
        for listener in listeners:
            listener()
        if isinstance(future, GroupFuture):
            future.end(self._result, error)

    def when_over(self, listener: Callable[[], None]) -> None:
        """Have `listener` called on the thread that ends this: it may not wait."""
        with self._lock:
            if not self.ended.is_set():
                self._listeners.append(listener)
                return
        listener()

    def progress(self) -> None:
        """Wait for the end."""
        together = self.together
        if together is not None:
            together.wait()
        self.ended.wait()

    def settle(self) -> BaseException | None:
        """Wait for the end, and for that of all callbacks; returns the first error of those."""
        self.progress()
        return self._future.settle() if isinstance(self._future, GroupFuture) else None

    @property
    def has_callbacks(self) -> bool:
        return isinstance(self._future, GroupFuture) and self._future.has_callbacks

    def untold(self) -> BaseException | None:
        """Return the error if nobody has heard of it yet."""
        is_told = self._is_told or (isinstance(self._future, GroupFuture) and self._future.is_told)
        return None if is_told else self._error

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is not None and timeout > timedelta(0):
            if not self.ended.wait(timeout.total_seconds()):
                raise StallError(
                    f"{self.kind} has not ended within {timeout.total_seconds():g} s, which is the time-out of this "
                    "wait(). It is still under way, and its tensors are in use: wait() for it again, or leave"
                )
        else:
            self.progress()
        if isinstance(self._future, GroupFuture):
            self._future.reach_cpp()
        if self._error is not None:
            self._is_told = True
            raise self._error from None
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = GroupFuture(self.name, _devices_of(self._result), self.progress)
            is_over = self.ended.is_set()
        raise_after_backward(self)
        if is_over:
            future.end(self._result, self._error)
            future.reach_cpp()
        return future

    def end_as_list(self) -> None:
        """Wait, and have a future that C++ finds a list of tensors in, not an object of Python's."""
        self.wait()
        tensors = list(self._result)
        self._future = cast("torch.futures.Future[Any]", torch._C.fork(lambda: tensors))  # it has ended

    def is_completed(self) -> bool:
        return self.ended.is_set()

    def is_success(self) -> bool:
        return self.ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result


class _Several(GroupWork):
    """One work for several."""

    def __init__(self, kind: str, works: Sequence[GroupWork], result: Any) -> None:
        super().__init__(kind, result)
        self._works = works
        self._left = len(works)
        self.name = works[0].name if works else ""
        if not works:
            self.over(None)
        for work in works:
            work.when_over(self._one_less)

    def _one_less(self) -> None:
        with self._lock:
            self._left -= 1
            left = self._left
        if not left:
            errors = [work.exception() for work in self._works]
            self.over(next(filter(None, errors), None))

    def progress(self) -> None:
        for work in self._works:
            work.progress()
        self.ended.wait()


class _Follower(GroupWork):
    """A work that ends after another one, when `finish` has been called."""

    def __init__(self, work: GroupWork, result: Any, finish: Callable[[], None]) -> None:
        super().__init__(work.kind, result, finish)
        self._work = work
        self.name = work.name
        work.when_over(lambda: self.over(work.exception()))

    def progress(self) -> None:
        self._work.progress()
        self.ended.wait()


def follow(work: GroupWork, result: Any, finish: Callable[[], None]) -> GroupWork:
    """Return a work that does `work`, and `finish` after it."""
    return _Follower(work, result, finish)


def all_of(kind: str, works: Sequence[GroupWork], result: Any) -> GroupWork:
    """Return one work for several."""
    return _Several(kind, works, result)


def _devices_of(result: Any) -> list[int | str | torch.device]:
    """Return the devices of its tensors, which may be in lists, without the CPU. Who waits for a future of these
    devices has the tensors in order.
    """
    if isinstance(result, torch.Tensor):
        return [] if result.is_cpu else [result.device]
    return list(dict.fromkeys(place for one in result for place in _devices_of(one)))

"""What a call of a process group returns: see `c10d`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from casync.errors import CasyncError
from casync.session import Together
from torch._C._distributed_c10d import Work

from .flight_recorder import Entry, recorder

__all__ = ["GroupWork", "all_of"]


class GroupWork(Work):
    """One call that was submitted. Any thread may wait for it."""

    def __init__(self, result: Any, finish: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._result = result
        self._finish = finish
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] = torch.futures.Future(devices=_devices_of(result) or None)
        self.ended = threading.Event()
        self.together: Together | None = None
        """The operations, while they last. Who waits for them makes progress meanwhile."""
        self._entry: Entry | None = None

    def tells(self, entry: Entry) -> None:
        """Flight Recorder's `entry` is of this."""
        self._entry = entry
        if self.ended.is_set():
            entry.is_over(self._error)

    def refused(self, error: CasyncError) -> None:
        """An operation could not be submitted; others may have been."""
        self._error = error

    def over(self, error: BaseException | None) -> None:
        """What was submitted has ended."""
        error = self._error or error
        if error is None and self._finish is not None:
            try:
                self._finish()
            except BaseException as raised:
                error = raised
        self._finish = self.together = None  # they hold this work in their turn
        self._error = error
        self.ended.set()
        if self._entry is not None:
            self._entry.is_over(error)
        if error is None:
            self._future.set_result(self._result)
        else:
            recorder.dump_if_wanted()
            self._future.set_exception(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout  # the session has one
        together = self.together
        if together is not None:
            together.wait()
        try:
            self._future.wait()
        except Exception:
            if self._error is None:
                raise
            raise self._error from None
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result


def all_of(works: Sequence[GroupWork], result: Any) -> GroupWork:
    """One for several."""
    whole = GroupWork(result)
    if not works:
        whole.over(None)
        return whole

    def over(_: Any) -> None:
        errors = [work.exception() for work in works]
        whole.over(next(filter(None, errors), None))

    torch.futures.collect_all([work.get_future() for work in works]).add_done_callback(over)
    return whole


def _devices_of(result: Any) -> list[int | str | torch.device]:
    """Of its tensors, which may be in lists; without the CPU. Who waits for a future of those has them in order."""
    if isinstance(result, torch.Tensor):
        return [] if result.is_cpu else [result.device]
    return list(dict.fromkeys(place for one in result for place in _devices_of(one)))

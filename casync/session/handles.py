"""Memory that a session keeps alive for the operations that are outstanding, by handle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from casync.errors import SESSION_IS_OVER, CasyncError, InvalidArgumentError
from casync.tensors.device import Device

__all__ = ["Handles"]


class Handles:
    """The handles of one session. `failed` is called with each error that has ended an operation."""

    def __init__(self, failed: Callable[[CasyncError], object]) -> None:
        self.kept: dict[int, Any] = {}
        """Handle -> what `Session.submit` was given to keep, until the operation is synchronised or the session ends.
        With a completion there is no handle, but a negative number.
        """
        self.devices: dict[int, Device] = {}
        """The devices of those handles whose memory is on one."""
        self._interrupted: list[Any] = []
        """The tensors that were outstanding when the session failed: transfers may touch them until it is closed."""
        self._numbers = itertools.count(-1, -1)
        self._failed = failed

    def keep(self, what: Any) -> int:
        """Keep `what` for operations with a completion, under the number that this returns."""
        number = next(self._numbers)
        self.kept[number] = what
        return number

    def end(self, number: int, error: CasyncError | None) -> None:
        """Their completion was called."""
        if error is None:
            self.kept.pop(number, None)
        else:
            self.fail((number,), error)

    def fail(self, handles: Iterable[int], error: CasyncError) -> None:
        """`error` was raised while the program waited for these."""
        if isinstance(error, InvalidArgumentError):
            return  # nobody waited, as in a completion: what is outstanding still needs its memory
        if isinstance(error, SESSION_IS_OVER) and not self._interrupted:
            self._interrupted = list(self.kept.values())
        self.forget(handles)
        self._failed(error)

    def forget(self, handles: Iterable[int]) -> None:
        """These have ended."""
        for handle in handles:
            self.kept.pop(handle, None)
            self.devices.pop(handle, None)

    def clear(self) -> None:
        """The session is closed: nothing is outstanding."""
        self.kept.clear()
        self.devices.clear()
        self._interrupted.clear()

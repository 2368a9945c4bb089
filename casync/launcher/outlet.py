"""Writes a job's output without waiting for its reader: a pager, a terminal stopped by Ctrl-S, a slow log.

What nobody has read yet is kept, up to a limit. From there on casyncrun stops listening to its ranks, whose prints then
wait as those of any program do; it goes on serving signals and exits.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Outlet"]

_MOST = 16 << 20
"""Bytes that are kept."""
_DESCRIPTORS = {"stdout": 1, "stderr": 2}
_LAST_SECONDS = 1.0
"""How long a reader may still take when the user has ended the job."""


class Outlet:
    """`wake` becomes readable when there is room again, or a stream has no reader any more."""

    def __init__(self, most: int = _MOST) -> None:
        self.broken: dict[str, str] = {}
        """Streams that nobody can read any more, each with what the system says of it."""
        self._most = most
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._kept = 0
        self._changed = threading.Condition()
        self.wake, self._poke = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._poke, False)
        self._is_over = False
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._kept > self._most

    def write(self, stream: str, data: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="casyncrun-output", daemon=True)
            self._thread.start()
        with self._changed:
            self._waiting.append((stream, data))
            self._kept += len(data)
            self._changed.notify_all()

    def hear(self) -> None:
        """Empty `wake`, so that it is no longer readable."""
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass

    def drain(self, is_ended: Callable[[], bool]) -> None:
        """Wait until all is written. Once `is_ended()`, the reader gets no more than a second."""
        until = None
        while self._kept:
            if until is None and is_ended():
                until = time.monotonic() + _LAST_SECONDS
            if until is not None and time.monotonic() >= until:
                return
            with self._changed:
                self._changed.wait_for(lambda: not self._kept, 0.1)

    def close(self) -> None:
        """End the thread, unless it waits for a reader that does not come."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS if not self._kept else 0)
        if self._thread is None or not self._thread.is_alive():
            os.close(self.wake)
            os.close(self._poke)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    return
                stream, data = self._waiting.popleft()
            if stream not in self.broken and (failure := _write(_DESCRIPTORS[stream], data)) is not None:
                self.broken[stream] = str(failure.strerror)
                self._say()
            with self._changed:
                was_full = self.is_full
                self._kept -= len(data)
                self._changed.notify_all()
            if was_full and not self.is_full:
                self._say()

    def _say(self) -> None:
        try:
            os.write(self._poke, b"x")
        except BlockingIOError:
            pass


def _write(descriptor: int, data: bytes) -> OSError | None:
    """Write it all, which waits for its reader; why nobody can read it, or None."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody has set the terminal so
            select.select([], [descriptor], [])
        except OSError as error:
            return error
    return None

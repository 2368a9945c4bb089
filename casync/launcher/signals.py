"""The signals by which a user ends a job, as bytes on a descriptor that a select can wait for."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

__all__ = ["catch", "caught"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def catch() -> tuple[int | None, Any]:
    """A descriptor on which caught signals arrive, and the function that undoes it; only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return None, lambda: None
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    before_fd = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in _ENDING}

    def restore() -> None:
        signal.set_wakeup_fd(before_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake_read)
        os.close(wake_write)

    return wake_read, restore


def caught(wake: int) -> list[int]:
    """Return the signals that have come since the last call."""
    try:
        return [number for number in os.read(wake, 64) if number in _ENDING]
    except BlockingIOError:
        return []

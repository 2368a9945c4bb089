"""Horovod's helper for background threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_thread"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls `target(*args)`, and return it; `silent` drops what the call raises."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args)}; for a single argument use (argument,)")

    def quietly() -> None:
        with contextlib.suppress(BaseException):
            target(*args)

    thread = threading.Thread(target=quietly if silent else target, args=() if silent else args, name=name)
    thread.daemon = daemon
    thread.start()
    return thread

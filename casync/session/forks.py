"""Forks: what a child process finds in place of its parent's sessions."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any, Protocol

from casync.errors import StartError

__all__ = ["Forked", "watch"]


class _Session(Protocol):
    @property
    def is_open(self) -> bool: ...
    def close_in_child(self) -> None: ...


_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()


class Forked:
    """In place of the core, whose threads and connections stayed with the parent, and of what submits to it."""

    def __init__(self, native: Any) -> None:
        # Never destroyed here: that would join a thread which this process does not have.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))

    def __getattr__(self, name: str) -> Any:
        raise StartError(
            "this process was forked after init() and has no part in the session: use it in the parent only, or start "
            "child processes with the spawn method and call init() there"
        )


def watch(session: _Session) -> None:
    """Have children find a `Forked` in `session`, if it is open when they are born."""
    _sessions.add(session)
    _register()


@functools.cache
def _register() -> None:
    """Once: Python never forgets a function that it is to call."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for session in _sessions:
        if session.is_open:
            session.close_in_child()
    _sessions.clear()  # a child of this one has them as they are now

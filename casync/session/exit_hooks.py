"""How a session hears that the program ends: by itself, or of an exception that nobody caught."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import TracebackType

__all__ = ["ExitHooks"]


class ExitHooks:
    """Hooks that call `leave` when the program ends by itself, and `tell` with an exception that ends it."""

    def __init__(
        self,
        leave: Callable[[], None],
        tell: Callable[[type[BaseException], BaseException, TracebackType | None], None],
    ) -> None:
        self._leave = leave
        self._tell = tell
        self._is_on = True
        self._previous = sys.excepthook
        self._own = self._on_uncaught
        sys.excepthook = self._own
        atexit.register(leave)

    def remove(self) -> None:
        """Leave the chain of hooks, out of which sessions may go in any order."""
        self._is_on = False
        atexit.unregister(self._leave)
        if sys.excepthook is self._own:
            sys.excepthook = self._previous
            return
        later = getattr(sys.excepthook, "__self__", None)
        while isinstance(later, ExitHooks):
            if later._previous is self._own:
                later._previous = self._previous
                return
            later = getattr(later._previous, "__self__", None)

    def _on_uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """sys.excepthook: this program is about to end, so nobody should wait for it."""
        if self._is_on:
            self._tell(kind, value, trace)
        self._previous(kind, value, trace)

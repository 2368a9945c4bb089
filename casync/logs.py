"""The logger `casync`: its level, as `CASYNC_LOG_LEVEL` sets it, and warnings about what takes long."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

__all__ = ["set_level", "warning_after"]

_LEVELS = {"TRACE": 5, "FATAL": logging.CRITICAL}


def set_level(name: str) -> None:
    """Show messages from this level on; an empty name leaves all as the program has set it.

    Where the program has no handlers, Python itself shows warnings, but nothing below: then this adds one.
    """
    if not name:
        return
    logger = logging.getLogger("casync")
    level = _LEVELS.get(name) or getattr(logging, name)
    logger.setLevel(level)
    if level < logging.WARNING and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
        logger.addHandler(handler)


@contextlib.contextmanager
def warning_after(seconds: float, text: str) -> Iterator[None]:
    """Log `text`, once, if what is done within takes longer."""
    timer = threading.Timer(seconds, logging.getLogger("casync").warning, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()

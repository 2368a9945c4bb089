"""The level of the logger `casync`, as `CASYNC_LOG_LEVEL` sets it."""

from __future__ import annotations

import logging

__all__ = ["set_level"]

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

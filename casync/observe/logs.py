"""The logger `casync`: its level, as `CASYNC_LOG_LEVEL` sets it, and what the core says to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from casync._constants import LOG_LEVELS

__all__ = ["log", "report_logger", "set_level", "threshold"]

_LOG = logging.getLogger("casync")
_UNLIKE = {"TRACE": 5, "FATAL": logging.CRITICAL}  # Python has no such names
# By the core's number of a level, Python's.
_NUMBERS = [_UNLIKE.get(name) or int(getattr(logging, name)) for name in LOG_LEVELS]


def set_level(name: str, explain: bool = False) -> None:
    """Show messages from this level on; an empty name leaves all as the program has set it, but for plans, which are
    shown if `explain` asks for them.

    Where the program has no handlers, Python itself shows warnings, but nothing below: then this adds one.
    """
    if not name and explain and not _LOG.isEnabledFor(logging.INFO):
        name = "INFO"
    if not name:
        return
    level = _NUMBERS[LOG_LEVELS.index(name)]
    _LOG.setLevel(level)
    if level < logging.WARNING:
        _need_handler()


def _need_handler() -> None:
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
        _LOG.addHandler(handler)


def report_logger(name: str) -> logging.Logger:
    """The logger `casync.<name>`, for reports that a user has asked for: its INFO is shown, unless the program or
    `CASYNC_LOG_LEVEL` has set a level of `casync` or of it.
    """
    logger = _LOG.getChild(name)
    if logger.level == _LOG.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
        _need_handler()
    return logger


def threshold() -> int:
    """The core's number of the least important level that is shown."""
    shown = _LOG.getEffectiveLevel()
    return next((number for number, level in enumerate(_NUMBERS) if level >= shown), len(_NUMBERS) - 1)


def log(level: int, text: str, fields: Mapping[str, Any]) -> None:
    """Log a text of the core, on any thread. Handlers find `fields` (casync/log.hpp) as `record.casync`."""
    _LOG.log(_NUMBERS[level], "%s", text, extra={"casync": fields})

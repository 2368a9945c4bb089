"""Errors that MXNet's engine hands on: what ended an operation, as the exception that CaSync has for it.

Glue gives the engine a text with the number of the error in front. MXNet raises it where a result is waited for, and
looks such a name up in its table of error classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from casync._constants import OP_KINDS
from casync.errors import ERROR_KINDS, CasyncError, error_of
from casync.session import default

from .loading import mx

__all__ = ["register"]

_LINE_END = "\x1f"
_TEXT = re.compile(r"casync\.\d+: (?P<text>.*)\n(?P<tensor>.*)\n(?P<peer>-?\d+)\s*", re.DOTALL)


def _maker(kind: str) -> Callable[[str], CasyncError]:
    def made(given: str) -> CasyncError:
        found = _TEXT.fullmatch(given.replace(_LINE_END, "\n"))
        if found is None:
            return error_of(kind, given)
        tensor, peer = found["tensor"] or None, int(found["peer"])
        op = tensor.partition(".")[0] if tensor else None
        owner = default.session() if default.is_initialized() else None
        error = error_of(
            kind,
            found["text"],
            tensor=tensor,
            op=op if op in OP_KINDS else None,
            rank=None if owner is None else owner.rank,
            peer=peer if peer >= 0 else None,
        )
        if owner is not None:
            owner.failed(error)
        return error

    return made


def register() -> None:
    """Have MXNet know CaSync's errors by the numbers that the core has for them."""
    for number, kind in enumerate(ERROR_KINDS, start=1):
        mx.error.register(f"casync.{number}", _maker(kind))

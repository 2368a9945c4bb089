"""Where in the user's own code something happened, for messages."""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType, TracebackType

__all__ = ["call_site", "describe_exception"]

# Frames of these packages are never where a user's program submitted something.
_NOT_THE_USER = frozenset({"casync", "keras", "mxnet", "tensorflow", "torch"})


def _place(frame: FrameType, line: int) -> str:
    path = frame.f_code.co_filename
    here = os.getcwd() + os.sep
    return f"{path.removeprefix(here)}:{line}"


def call_site() -> str:
    """`file:line` of the innermost frame outside CaSync and the framework. A few µs: call it at a name's first use
    only.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USER:
            return _place(frame, frame.f_lineno)
        frame = frame.f_back
    return "?"


def describe_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    """`Type: text at file:line`, the place being the innermost one in the user's own code."""
    text = "".join(traceback.format_exception_only(kind, value)).strip()
    place = ""
    while trace is not None:
        if not place or str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USER:
            place = f" at {_place(trace.tb_frame, trace.tb_lineno)}"
        trace = trace.tb_next
    return text + place

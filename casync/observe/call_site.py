"""Where in the user's own code something happened, for messages."""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType, TracebackType

__all__ = ["call_site", "describe_exception", "encodable"]

# Frames of these packages are never where a user's program submitted something: CaSync and the frameworks, libraries
# that train for the user, and what the standard library puts between.
_NOT_THE_USER = frozenset(
    {
        "casync", "jax", "keras", "mxnet", "tensorflow", "tf_keras", "torch",
        "accelerate", "lightning", "lightning_fabric", "lightning_utilities", "peft", "pytorch_lightning", "ray",
        "sentence_transformers", "torchtitan", "transformers", "trl",
    }
) | sys.stdlib_module_names  # fmt: skip


def encodable(text: str) -> str:
    """`text` with each lone surrogate, which UTF-8 has no bytes for and the core does not take, as its escape."""
    return text.encode(errors="backslashreplace").decode()


def _place(frame: FrameType, line: int) -> str:
    path = frame.f_code.co_filename
    here = os.getcwd() + os.sep
    return encodable(f"{path.removeprefix(here)}:{line}")


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USER


def call_site() -> str:
    """`file:line` of the innermost frame of the user's program. A few µs: call it at a name's first use only."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame):
            return _place(frame, frame.f_lineno)
        frame = frame.f_back
    return "?"


def describe_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    """`Type: text at file:line`, the place being the innermost one in the user's own code."""
    text = "".join(traceback.format_exception_only(kind, value)).strip()
    place = ""
    while trace is not None:
        if not place or _is_users(trace.tb_frame):
            place = f" at {_place(trace.tb_frame, trace.tb_lineno)}"
        trace = trace.tb_next
    return encodable(text) + place

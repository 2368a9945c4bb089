"""Takes pointers for glue in C (casync/c_api.h) out of the capsules that hold them. The caller holds the GIL. Whoever
uses a session's pointer must keep its capsule alive.
"""

from __future__ import annotations

import ctypes
from typing import Any

from casync import _core

__all__ = ["session_pointer", "table_pointer"]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def table_pointer() -> ctypes.c_void_p:
    """The table of functions."""
    return ctypes.c_void_p(_pointer(_core.c_api, b"casync._core.c_api"))


def session_pointer(capsule: Any) -> ctypes.c_void_p:
    """The session of what `Session.c_session()` returned."""
    return ctypes.c_void_p(_pointer(capsule, b"casync.Session"))

"""Operations as MXNet's engine runs them: when their input has been computed, and without anybody who waits.

The glue (native/) is a library that both call. Python gives it what an operation is and returns; the engine's thread
submits it, and CaSync's thread says when it is over.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casync import glue
from casync.collectives.gradient_submits import OptimizerSettings
from casync.session.process_sets import ProcessSet
from casync.session.session import Session

from .loading import mx

__all__ = ["Operation", "push", "settle"]


class _Operation(ctypes.Structure):
    """`casync_mxnet_operation` of native/push.hpp."""

    _fields_ = (
        ("tensor", ctypes.c_uint32),
        ("is_told", ctypes.c_int32),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("gathered", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("ranks", ctypes.c_size_t),
        ("lr", ctypes.c_float),
        ("momentum", ctypes.c_float),
        ("loss_scale", ctypes.c_float),
        ("nesterov", ctypes.c_int32),
    )


@dataclass
class Operation:
    """One of a push.

    Attributes:
        registration: of its tensor, as `OpSignature.register` gives it.
        input: an NDArray.
        output: another one that it is written to; None: the input.
        gathered: of an allgather or an alltoall, the bytes of the output.
        rows: of an allgather, this rank's own.
        splits: of an alltoall, this rank's rows for each rank.
        terms: how the gradient will be used, if the codec must know.
    """

    registration: int
    input: Any
    output: Any = None
    gathered: int = -1
    rows: int = 0
    splits: Sequence[int] = ()
    terms: OptimizerSettings | None = None

    def in_c(self) -> _Operation:
        splits = (ctypes.c_int64 * len(self.splits))(*self.splits)
        told = self.terms or OptimizerSettings()
        output = None if self.output is None else self.output.handle
        return _Operation(
            self.registration, self.terms is not None, self.input.handle, output, self.gathered, self.rows, splits,
            len(self.splits), told.lr, told.momentum, told.loss_scale, told.nesterov,
        )  # fmt: skip


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).with_name("_glue.so")))
    library.casync_mxnet_load.restype = ctypes.c_char_p
    library.casync_mxnet_load.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.casync_mxnet_push.argtypes = (
        ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Operation), ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p,
    )  # fmt: skip
    error = library.casync_mxnet_load(glue.table_pointer(), mx.base._LIB._handle)
    if error is not None:
        raise ImportError(error.decode())
    return library


_library = _load()
_capsules: weakref.WeakKeyDictionary[Session, Any] = weakref.WeakKeyDictionary()
"""The capsules that keep the core's session at its address, so that the glue can tell it from a later one."""


def settle() -> None:
    """Wait until the engine has nothing left, because other ranks may wait for it. Raises the error that ended an
    operation, if nobody has been told.
    """
    mx.nd.waitall()


def push(owner: Session, process_set: ProcessSet, operations: Sequence[Operation], priority: int, name: str) -> None:
    """Have the engine start `operations` together. Does not wait; what goes wrong is raised where an output, or what
    was computed from it, is waited for.

    Args:
        owner: the session of `process_set`, which has registered the tensors.
        priority: operations that are ready are submitted in the order of it, the highest first. Their registrations
            say what becomes of them then.
        name: for MXNet's profiler.
    """
    capsule = _capsules.get(owner)
    if capsule is None:
        capsule = _capsules[owner] = owner.c_session()
        atexit.unregister(settle)
        atexit.register(settle)  # so that it is called before the session, which has registered its end, ends
    in_c = (_Operation * len(operations))(*(operation.in_c() for operation in operations))
    session = glue.session_pointer(capsule)
    result = _library.casync_mxnet_push(
        process_set.process_set_id, session, in_c, len(operations), priority, name.encode()
    )
    mx.base.check_call(result)

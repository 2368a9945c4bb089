"""TensorFlow, and our operations in it: a library that it loads (native/), whose kernels wait for nothing."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from casync import glue
from casync.errors import NotAvailableError

try:
    import tensorflow as tf
except ImportError as error:
    raise NotAvailableError(
        f"casync.tensorflow needs TensorFlow, which cannot be imported here ({error}): pip install tensorflow"
    ) from error

__all__ = ["operations"]

_TESTED = "2.21"


@functools.cache
def operations() -> Any:
    """The functions that make operations, `casync_allreduce` and so on. Raises `NotAvailableError` if the release of
    TensorFlow has no place for them.
    """
    path = str(Path(__file__).with_name("_glue.so"))
    made = tf.load_op_library(path)
    library = ctypes.CDLL(path)
    library.casync_tensorflow_failure.restype = ctypes.c_char_p
    if failure := library.casync_tensorflow_failure().decode():
        raise NotAvailableError(
            f"TensorFlow {tf.__version__} does not take our operations ({failure}): CaSync is tested with {_TESTED}"
        )
    if library.casync_tensorflow_start(glue.table_pointer()):
        raise NotAvailableError(f"{path} is of another version than casync._core: install CaSync again")
    return made

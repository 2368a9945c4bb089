"""MXNet itself, imported as this machine's NumPy needs it. The other modules of the adaptor take `mx` from here."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

__all__ = ["mx"]

_REMEDY = "MXNet 1.9.1 runs with Python 3.10 to 3.12 and with NumPy 1: pip install mxnet==1.9.1 'numpy<2'"


@contextlib.contextmanager
def _np_bool() -> Iterator[None]:
    """MXNet reads `np.bool`, which NumPy has taken away in 1.24."""
    if "bool" in vars(np):
        yield
        return
    np.bool = bool  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        del np.bool


@contextlib.contextmanager
def _openmp_threads() -> Iterator[None]:
    """MXNet lowers the number of OpenMP's threads, which is torch's and everybody's in this process."""
    try:
        openmp = ctypes.CDLL("libgomp.so.1")
    except OSError:
        yield
        return
    threads = openmp.omp_get_max_threads()
    try:
        yield
    finally:
        openmp.omp_set_num_threads(threads)


def _check() -> None:
    """Raise ImportError where MXNet cannot be imported, with what to do."""
    if find_spec("mxnet") is None:
        raise ImportError(f"casync.mxnet needs MXNet, which is not installed. {_REMEDY}", name="mxnet")
    if int(np.__version__.partition(".")[0]) >= 2:
        raise ImportError(f"MXNet cannot be imported with NumPy {np.__version__}. {_REMEDY}", name="mxnet")
    if find_spec("distutils") is None:
        version = ".".join(map(str, sys.version_info[:2]))
        remedy = "pip install setuptools, which has it" if version == "3.12" else _REMEDY
        raise ImportError(f"MXNet imports distutils, which Python {version} has not: {remedy}", name="distutils")


if "mxnet" not in sys.modules:
    _check()
    with _np_bool(), _openmp_threads():
        import mxnet as mx
else:
    import mxnet as mx

"""The stand-in for CUDA's driver, compiled and loaded; what a test tells it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]
_SOURCES = sorted((ROOT / "tests/cuda/standin").glob("*.cc"))
_LOCKSTEP = ROOT / "tests/compll/cuda/lockstep"
_READ = [*(ROOT / "tests/cuda/standin").rglob("*.cc"), *(ROOT / "tests/cuda/standin").rglob("*.h*"),
         ROOT / "casync_core/src/cuda/driver.hpp", ROOT / "casync_core/src/cuda/nccl.hpp",
         _LOCKSTEP / "lockstep_kernel.hpp"]  # fmt: skip

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Pointer = ctypes.c_void_p
_kernels: dict[int, Callable[[], None]] = {}  # that have not run yet
_numbers = itertools.count(1)


@functools.cache
def library() -> Path:
    """Where it is, compiled once for all processes."""
    return _compiled("libcuda.so", _SOURCES, f"-I{_LOCKSTEP}", "-ldl")


@functools.cache
def nccl_library() -> Path:
    """The stand-in for NCCL, likewise. It works on the one above."""
    sources = sorted((ROOT / "tests/cuda/standin/nccl").glob("*.cc"))
    includes = [f"-I{ROOT / 'casync_core/include'}", f"-I{ROOT / 'tests/cuda'}"]
    beside = [f"-L{library().parent}", "-l:libcuda.so", f"-Wl,-rpath,{library().parent}", "-lrt"]
    return _compiled("libnccl.so.2", sources, *includes, *beside)


def _compiled(name: str, sources: list[Path], *arguments: str) -> Path:
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_READ))).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"casync-standin-{os.getuid()}-{digest}" / name
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        mine = path.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Wshadow", "-shared", "-fPIC", "-pthread",
                   f"-I{ROOT / 'casync_core/src'}", *map(str, sources), *arguments, "-o", str(mine)]  # fmt: skip
        subprocess.run(command, check=True)
        mine.rename(path)
    return path


@functools.cache
def loaded() -> ctypes.CDLL:
    """The library, which the core takes for CUDA's driver from now on: to be called before its first use of one."""
    os.environ["CASYNC_CUDA_DRIVER"] = str(library())
    handle = ctypes.CDLL(str(library()))
    handle.standin_distance.restype = ctypes.c_int64
    handle.standin_launch.argtypes = [_Pointer, _BODY, _Pointer, ctypes.c_int]
    handle.standin_capture.argtypes = [_Pointer, ctypes.c_int]
    handle.standin_device_bytes.restype = handle.standin_pinned_bytes.restype = ctypes.c_size_t
    handle.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
    handle.cuMemFreeAsync.argtypes = [ctypes.c_uint64, _Pointer]
    handle.cuStreamCreateWithPriority.argtypes = [ctypes.POINTER(_Pointer), ctypes.c_uint, ctypes.c_int]
    handle.cuStreamSynchronize.argtypes = [_Pointer]
    handle.cuCtxPushCurrent_v2.argtypes = [_Pointer]
    handle.standin_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    return handle


class _Current(threading.local):
    """A thread's device, and the stream on which it computes."""

    def __init__(self) -> None:
        self.device = 0
        self.stream: int | None = None  # the default one
        self.has_context = False


current = _Current()


def call(name: str, *arguments: object) -> None:
    """A function of the driver, with the device current, as a framework would."""
    handle = loaded()
    if not current.has_context:
        current.has_context = True
        handle.cuCtxPushCurrent_v2(current.device + 1)
    result = getattr(handle, name)(*arguments)
    assert result == 0, f"{name} returned {result}"


def allocate(bytes: int) -> int:
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), max(bytes, 1))
    return address.value


def free(address: int, stream: int | None) -> None:
    """When the stream has come to this point, as the allocators of frameworks do."""
    call("cuMemFreeAsync", address, stream)


def new_stream() -> int:
    stream = _Pointer()
    call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
    assert stream.value is not None
    return stream.value


def _run(number: int | None) -> None:
    _kernels.pop(number or 0)()


_body = _BODY(_run)


def launch(kernel: Callable[[], None], milliseconds: int = 0) -> None:
    """Run `kernel` when the current stream has come to this point, after so much work."""
    number = next(_numbers)
    _kernels[number] = kernel
    loaded().standin_launch(current.stream, _body, number, milliseconds)


def synchronize() -> None:
    """Wait until the current stream has come to this point."""
    call("cuStreamSynchronize", current.stream)

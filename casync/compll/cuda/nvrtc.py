"""Device code to machine code, for one architecture, by NVIDIA's run-time compiler (NVRTC).

    cubin = cubin_of(emit(codec, "onebit"), "sm_90")

It needs no CUDA toolkit: the library comes with the extra `casync[cuda]`, with torch's packages, or from the system.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from casync.compll.cache import cache_folder, keep, locked
from casync.compll.cuda.emit import CUDA_FLAGS
from casync.compll.headers import device_headers
from casync.errors import DeviceError, NotAvailableError

__all__ = ["Nvrtc", "cubin_of", "find_nvrtc"]

_OLDEST = (12, 0)  # the first one with C++20
_REMEDY = "pip install nvidia-cuda-nvrtc"
# Host functions in a shared header are then taken for functions of the device, that nothing calls.
_OPTIONS = (*CUDA_FLAGS, "-default-device")
# NVRTC has no standard library. Functions such as sqrtf are built into it.
_STANDARD = {
    "cmath": "",
    "cstddef": """#pragma once
namespace std {
using size_t = decltype(sizeof 0);
enum class byte : unsigned char {};
}
""",
    "cstdint": """#pragma once
namespace std {
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long;
using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned int;
using uint64_t = unsigned long;
}
""",
}


def cubin_of(text: str, architecture: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return what `cuModuleLoadData` takes: `text`, compiled for `architecture` ("sm_90") unless that is in the cache.

    Any number of threads and processes may call at once; one process of a host compiles. Raises `NotAvailableError` if
    there is no NVRTC, it does not know the architecture or the cache cannot be written; `DeviceError`, with NVRTC's
    log, if the text does not compile.
    """
    nvrtc = find_nvrtc()
    headers = device_headers() | _STANDARD
    made_of = [text, *(part for header in headers.items() for part in header), *_OPTIONS, architecture]
    key = hashlib.sha256("\0".join([*made_of, nvrtc.version]).encode()).hexdigest()
    target = cache_folder(environ) / f"{architecture}-{key[:32]}.cubin"
    if (cubin := _kept(target)) is not None:
        return cubin
    with locked(target, f"device code for {architecture}"):
        if (cubin := _kept(target)) is None:
            cubin = nvrtc.compile(text, architecture, headers)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / "cubin"
                made.write_bytes(hashlib.sha256(cubin).digest() + cubin)
                keep(made, target)
    return cubin


def _kept(target: Path) -> bytes | None:
    """Return what the file holds, if it is there and whole. It begins with the digest of the rest."""
    try:
        content = target.read_bytes()
    except OSError:
        return None
    digest, cubin = content[:32], content[32:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None


class Nvrtc:
    """A library of NVRTC that was loaded from `path`."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` if it cannot be loaded."""
        self.path = path
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.release = (major.value, minor.value)
        self.version = f"{major.value}.{minor.value}"

    def architectures(self) -> list[str]:
        """Return the architectures that it can compile for: "sm_75" and so on."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return [f"sm_{number}" for number in numbers]

    def compile(self, text: str, architecture: str, headers: Mapping[str, str]) -> bytes:
        """Return the cubin; a call may take seconds. `headers` are all that the text can include, by name."""
        if architecture not in self.architectures():
            raise NotAvailableError(
                f"NVRTC {self.version} ({self.path}) does not know {architecture}, only "
                f"{', '.join(self.architectures())}: {_REMEDY} brings a newer one"
            )
        program = ctypes.c_void_p()
        texts, names = _strings(headers.values()), _strings(headers)
        source = text.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source, b"codec.cu", len(headers), texts, names)
        try:
            options = [*_OPTIONS, f"--gpu-architecture={architecture}"]
            code = self._library.nvrtcCompileProgram(program, len(options), _strings(options))
            log = self._result(program, "nvrtcGetProgramLog", "nvrtcGetProgramLogSize").rstrip(b"\0\n").decode()
            if code or log:  # a warning too is a fault of generated code
                raise DeviceError(f"NVRTC {self.version} does not compile the code for {architecture}: it said\n{log}")
            return self._result(program, "nvrtcGetCUBIN", "nvrtcGetCUBINSize")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _result(self, program: ctypes.c_void_p, get: str, get_size: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(get_size, program, ctypes.byref(size))
        result = ctypes.create_string_buffer(size.value)
        self._call(get, program, result)
        return result.raw

    def _call(self, function: str, *arguments: object) -> None:
        if code := getattr(self._library, function)(*arguments):
            say = self._library.nvrtcGetErrorString
            say.restype = ctypes.c_char_p
            raise DeviceError(f"{function} of NVRTC ({self.path}) failed: {say(code).decode()}")


def _strings(texts: object) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]  # type: ignore[attr-defined]
    return (ctypes.c_char_p * len(encoded))(*encoded)


@functools.cache
def find_nvrtc() -> Nvrtc:
    """The newest of NVIDIA's packages in this environment (torch brings one too), else the system's.

    Raises `NotAvailableError`, with the remedy, if there is none or all are too old.
    """
    too_old = []
    for path in _candidates():
        try:
            nvrtc = Nvrtc(path)
        except OSError:
            continue
        if nvrtc.release >= _OLDEST:
            return nvrtc
        too_old.append(f"{path} is {nvrtc.version}")
    oldest = ".".join(map(str, _OLDEST))
    found = f"{'; '.join(too_old)}, older than {oldest}" if too_old else "it is not there"
    raise NotAvailableError(f"CaSync compiles codecs for a GPU with NVRTC, and {found}: {_REMEDY}")


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path for package in packages for path in package.glob("*/lib/libnvrtc.so.*")]
    yield from map(str, sorted(found, key=_release_in_name, reverse=True))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
    yield os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64", "libnvrtc.so")


def _release_in_name(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]

"""Memory of a CUDA device, and plain copies to it and from it, through the driver alone: no framework is needed."""

from __future__ import annotations

import ctypes
import os

from casync.tensors.device import Device

__all__ = ["DeviceMemory", "WholeDevice"]

_Pointer = ctypes.c_void_p
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE


class WholeDevice(Device):
    """Device 0 for `Session.submit`, with the legacy default stream."""

    number = 0

    def stream(self) -> int:
        return 0

    def ordered(self) -> None:
        pass


class DeviceMemory:
    """So many bytes on device 0, at `address`, and as many of pinned memory, in `host`.

    Copies are queued on the legacy default stream; `synchronize` waits for all of them. Of the thread that made it. The
    memory is kept until the process ends. Raises OSError where there is no driver, and RuntimeError where a call of it
    fails. CASYNC_CUDA_DRIVER names another driver, as it does for the core.
    """

    def __init__(self, bytes: int) -> None:
        self._driver = ctypes.CDLL(os.environ.get("CASYNC_CUDA_DRIVER", "libcuda.so.1"))
        device, context = ctypes.c_int(), _Pointer()
        address, host = ctypes.c_uint64(), _Pointer()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes))
        self._call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(bytes), ctypes.c_uint(_PORTABLE))
        assert host.value is not None
        self.address = address.value
        self.host = memoryview((ctypes.c_ubyte * bytes).from_address(host.value)).cast("B")
        self._at = host.value

    def to_host(self, begin: int, end: int) -> None:
        """Queue a copy of these bytes to the host."""
        self._call("cuMemcpyDtoHAsync_v2", _Pointer(self._at + begin), ctypes.c_uint64(self.address + begin),
                   ctypes.c_size_t(end - begin), None)  # fmt: skip

    def to_device(self, begin: int, end: int) -> None:
        """Queue a copy of these bytes to the device."""
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.address + begin), _Pointer(self._at + begin),
                   ctypes.c_size_t(end - begin), None)  # fmt: skip

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", None)

    def _call(self, name: str, *arguments: object) -> None:
        if result := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"CUDA's {name} failed with error {result}")

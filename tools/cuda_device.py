"""Whether there is a CUDA device, from the driver itself: no framework is needed to ask."""

import ctypes

DRIVER = "libcuda.so.1"


def missing(library: str = DRIVER) -> str | None:
    """Why no CUDA device can be used; None if one can."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"no CUDA driver ({library}) on this machine"
    if code := driver.cuInit(0):
        return f"the CUDA driver does not start (cuInit gave {code})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return None if count.value else "the CUDA driver sees no device"

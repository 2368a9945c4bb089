"""Runs the tests that carry the marker `gpu`; where there is no CUDA device it says so and leaves with 0."""

import ctypes
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS_COLLECTED = 5


def missing() -> str | None:
    """Why no CUDA device can be used, from the driver itself: no framework is needed to ask."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1) on this machine"
    if code := driver.cuInit(0):
        return f"the CUDA driver does not start (cuInit gave {code})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return None if count.value else "the CUDA driver sees no device"


def main() -> int:
    if why := missing():
        print(f"GPU tests skipped: {why}")
        return 0
    pytest = [str(Path(sys.executable).with_name("pytest")), "-q", "-ra", "-m", "gpu", "tests/python"]
    status = subprocess.run(pytest, cwd=ROOT).returncode
    if status == NO_TESTS_COLLECTED:
        print("GPU tests skipped: no test carries the marker `gpu`")
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Whether there is a GPU, and what is said if there is none. Each in a process of its own: a driver that was found
stays.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.standin import driver


def said(program: str, **variables: str) -> str:
    """What `program` prints, or the last line of its traceback."""
    environ = {name: value for name, value in os.environ.items() if name != "CASYNC_CUDA_DRIVER"} | variables
    environ["PYTHONSAFEPATH"] = "1"  # the installed casync, not the checkout's
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def standin() -> str:
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler on PATH")
    return str(driver.library())


REQUIRE = "import casync.cuda; casync.cuda.require()"


def test_without_a_driver_the_error_says_what_to_install(tmp_path: Path) -> None:
    text = said(REQUIRE, CASYNC_CUDA_DRIVER=str(tmp_path / "libnone.so"))
    assert text.startswith("casync.errors.DeviceError: CUDA's driver is not there (")
    assert "install NVIDIA's driver 525 or newer" in text


def test_an_old_driver_and_one_without_a_device_are_named(standin: str) -> None:
    text = said(REQUIRE, CASYNC_CUDA_DRIVER=standin, STANDIN_VERSION="11080")
    assert "is too old: it serves CUDA 11.8: install NVIDIA's driver 525" in text
    assert "sees no device: `nvidia-smi`" in said(REQUIRE, CASYNC_CUDA_DRIVER=standin, STANDIN_DEVICES="0")


def test_devices_have_names(standin: str) -> None:
    assert said("import casync.cuda as c; c.require(); print(c.devices())", CASYNC_CUDA_DRIVER=standin) == str(
        ["stand-in"] * 2
    )


def test_an_import_looks_for_no_driver() -> None:
    program = "import casync.cuda, casync._core; print([l for l in open('/proc/self/maps') if 'libcuda' in l])"
    assert said(program) == "[]"


SUBMIT = """
import sys
sys.path[:0] = {path!r}
from support.bindings import binding_of
from support.standin import driver, tensors
hvd = binding_of("standin").hvd
hvd.init()
w = tensors.from_host(__import__("numpy").ones(4, "float32"))
def refused(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error.kind, error.tensor, error)
"""


def test_errors_of_a_submit_are_typed_and_training_goes_on(standin: str) -> None:
    program = (
        SUBMIT.format(path=sys.path)
        + """
driver.loaded().standin_fail(b"cuMemHostAlloc", 1, 2)
refused(lambda: hvd.allreduce_(w, name="w"))
hvd.allreduce_(w, name="w")
print(tensors.to_host(w).tolist())
driver.loaded().standin_capture(driver.current.stream, 1)
refused(lambda: hvd.allreduce_(w, name="w"))
"""
    )
    failed, result, captured = said(program, CASYNC_CUDA_DRIVER=standin).splitlines()
    assert failed.startswith("DeviceError device allreduce.w no 4096 bytes of pinned memory") and "ulimit -l" in failed
    assert result == "[1.0, 1.0, 1.0, 1.0]"
    assert captured.startswith("InvalidArgumentError invalid_argument allreduce.w the stream is being captured")


def test_a_lost_device_ends_the_session(standin: str) -> None:
    program = (
        SUBMIT.format(path=sys.path)
        + """
handle = hvd.allreduce_async_(w, name="w")
driver.loaded().standin_lose_device(1)
refused(lambda: hvd.synchronize(handle))
"""
    )
    text = said(program, CASYNC_CUDA_DRIVER=standin)
    assert text.startswith("AbortedError") and "CUDA_ERROR_ECC_UNCORRECTABLE" in text


def test_an_allocator_is_told_who_uses_the_memory_last(standin: str) -> None:
    program = (
        SUBMIT.format(path=sys.path)
        + """
other = driver.new_stream()
handle = hvd.allreduce_async(w, name="w")
driver.current.stream = other
result = hvd.synchronize(handle)
print([memory.streams == [None, other] for memory in (w.memory, result.memory)], tensors.to_host(result).tolist())
"""
    )
    assert said(program, CASYNC_CUDA_DRIVER=standin) == "[True, True] [1.0, 1.0, 1.0, 1.0]"

"""Whether there is a GPU, and what is said if there is none. Each in a process of its own: a driver that was found
stays.
"""

import shutil
from pathlib import Path

import pytest

from support.standin import driver
from support.standin.programs import BEGIN, said


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


DOCTOR = """
from casync.launcher import doctor
for f in doctor._gpus():
    print(f.what, f.state, f.detail, f.advice, sep="; ")
"""


def test_the_doctor_says_what_there_is(standin: str) -> None:
    lines = said(DOCTOR, CASYNC_CUDA_DRIVER=standin).splitlines()
    assert lines[:4] == [
        "CUDA; ok; NVIDIA's driver serves CUDA 13.0; ",
        "GPU 0; ok; stand-in, 1.5 GiB, PCI 0000:01:00.0, compute capability 9.0; ",
        "GPU 1; ok; stand-in, 1.5 GiB, PCI 0000:02:00.0, compute capability 9.0; ",
        "between GPUs; ok; 0 to 1: reaches its memory, performance rank 1; 1 to 0: does not reach its memory; ",
    ]
    assert [line.split(";")[0] for line in lines[4:]] == ["NCCL", "NVRTC"]
    lines = said(DOCTOR, CASYNC_CUDA_DRIVER=standin, CUDA_VISIBLE_DEVICES="1").splitlines()
    assert lines[1:2] == ["GPU 0; ok; stand-in, 1.5 GiB, PCI 0000:02:00.0, compute capability 9.0; "]
    assert not any(line.startswith("between GPUs") for line in lines)


def test_the_doctor_has_one_line_where_there_is_no_driver(tmp_path: Path) -> None:
    text = said(DOCTOR, CASYNC_CUDA_DRIVER=str(tmp_path / "libnone.so"))
    assert text.startswith("CUDA; absent; no GPU that CaSync can use; CUDA's driver is not there (")
    assert "install NVIDIA's driver 525" in text and "\n" not in text


def test_the_doctor_says_which_nccl_the_core_takes(standin: str, tmp_path: Path) -> None:
    """That of NVIDIA's package lies in a folder that the loader does not look at."""
    package = tmp_path / "nvidia" / "nccl" / "lib"
    package.mkdir(parents=True)
    (package / "libnccl.so.2").symlink_to(driver.nccl_library())
    found = said(DOCTOR, CASYNC_CUDA_DRIVER=standin, PYTHONPATH=str(tmp_path)).splitlines()
    assert f"NCCL; ok; 2.28.9, {package / 'libnccl.so.2'}; " in found
    old = {"PYTHONPATH": str(tmp_path), "STANDIN_NCCL_VERSION": "21703"}
    found = said(DOCTOR, CASYNC_CUDA_DRIVER=standin, **old).splitlines()
    line = next(line for line in found if line.startswith("NCCL"))
    assert line.startswith("NCCL; absent; no NCCL that CaSync can use; ")
    assert "is NCCL 2.17.3, which is too old: install NCCL 2.18 or newer" in line


def test_nccl_built_is_the_version_of_what_is_there(tmp_path: Path) -> None:
    program = "from casync.session import build_info as built; print(built.nccl_built())"
    assert said(program, CASYNC_NCCL=str(driver.nccl_library())) == "22809"
    assert said(program, CASYNC_NCCL=str(tmp_path / "libnone.so")) == "0"


def test_an_import_looks_for_no_driver() -> None:
    program = "import casync.cuda, casync._core; print([l for l in open('/proc/self/maps') if 'libcuda' in l])"
    assert said(program) == "[]"


def test_errors_of_a_submit_are_typed_and_training_goes_on(standin: str) -> None:
    program = (
        BEGIN
        + """
script.standin_fail(b"cuMemHostAlloc", 1, 2)
refused(lambda: hvd.allreduce_(w, name="w"))
hvd.allreduce_(w, name="w")
print(tensors.to_host(w).tolist())
script.standin_capture(driver.current.stream, 1)
refused(lambda: hvd.allreduce_(w, name="w"))
"""
    )
    no_memory, result, captured = said(program, CASYNC_CUDA_DRIVER=standin).splitlines()
    assert no_memory.startswith("0 DeviceError device allreduce.w no 4096 bytes of pinned memory")
    assert "ulimit -l" in no_memory
    assert result == "[1.0, 1.0, 1.0, 1.0]"
    assert captured.startswith("0 InvalidArgumentError invalid_argument allreduce.w the stream is being captured")


def test_a_lost_device_ends_the_session(standin: str) -> None:
    program = (
        BEGIN
        + """
handle = hvd.allreduce_async_(w, name="w")
script.standin_lose_device(1)
refused(lambda: hvd.synchronize(handle))
"""
    )
    text = said(program, CASYNC_CUDA_DRIVER=standin)
    assert text.startswith("0 AbortedError") and "CUDA_ERROR_ECC_UNCORRECTABLE" in text


def test_an_allocator_is_told_who_uses_the_memory_last(standin: str) -> None:
    program = (
        BEGIN
        + """
other = driver.new_stream()
handle = hvd.allreduce_async(w, name="w")
driver.current.stream = other
result = hvd.synchronize(handle)
print([memory.streams == [None, other] for memory in (w.memory, result.memory)], tensors.to_host(result).tolist())
"""
    )
    assert said(program, CASYNC_CUDA_DRIVER=standin) == "[True, True] [1.0, 1.0, 1.0, 1.0]"

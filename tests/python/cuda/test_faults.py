"""What goes wrong with a GPU, on the stand-in: each rank gets an error that says what, and nobody hangs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.standin import driver
from support.standin.programs import BEGIN, run, said

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler on PATH")


def alone(program: str, **variables: str) -> list[str]:
    """The lines of a program of one rank."""
    return said(BEGIN + program, CASYNC_CUDA_DRIVER=str(driver.library()), **variables).splitlines()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_device_that_is_lost_in_the_middle_of_a_step_is_an_error_on_every_rank(
    ranks: int, victim: int, tmp_path: Path
) -> None:
    program = f"""
step = [tensors.from_host(numpy.ones(1 << 16, "float32")) for _ in range(8)]


def train():
    for number in range(1000):
        handles = [hvd.allreduce_async_(tensor, name=str(i)) for i, tensor in enumerate(step)]
        if number == 3 and hvd.rank() == {victim}:
            script.standin_lose_device(1)
        for handle in handles:
            hvd.synchronize(handle)


refused(train)
hvd.shutdown()
"""
    lines = run(ranks, BEGIN + program, tmp_path)
    assert [line.split()[:2] for line in lines] == [[str(rank), "AbortedError"] for rank in range(ranks)]
    assert lines[victim].split()[2] == "device" and "CUDA_ERROR_ECC_UNCORRECTABLE" in lines[victim]
    assert all("device 0 failed" in line for line in lines), lines


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemcpyDtoHAsync_v2"])
def test_a_rank_whose_submit_fails_tries_again_and_the_others_wait(call: str, tmp_path: Path) -> None:
    program = f"""
for number in range(3):
    tensor = tensors.from_host(numpy.ones(1 << 16, "float32"))
    if number == 0 and hvd.rank() == 1:
        script.standin_fail(b"{call}", 1, 2)
        refused(lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=str(number)))
    hvd.allreduce_(tensor, op=hvd.Sum, name=str(number))
    print(hvd.rank(), number, sorted(set(tensors.to_host(tensor).tolist())), flush=True)
"""
    lines = run(2, BEGIN + program, tmp_path)
    assert [line for line in lines if "Error" not in line] == [
        f" {rank} {number} [2.0]" for rank in range(2) for number in range(3)
    ]
    (refused,) = [line for line in lines if "Error" in line]
    assert refused.startswith(" 1 DeviceError device allreduce.0 ") and "CUDA_ERROR_OUT_OF_MEMORY" in refused


def test_a_rank_that_ends_without_pinned_memory_is_named_on_the_others(tmp_path: Path) -> None:
    program = """
if hvd.rank() == 1:
    script.standin_fail(b"cuMemHostAlloc", 1, 2)
    hvd.allreduce_(w, name="w")
refused(lambda: hvd.allreduce_(w, name="w"))
"""
    (line,) = run(2, BEGIN + program, tmp_path, status=1)
    assert line.startswith(" 0 AbortedError aborted allreduce.w "), line
    assert "rank 1" in line and "no 4096 bytes of pinned memory" in line


def test_no_memory_of_the_device_for_a_result_is_the_frameworks_error_and_training_goes_on() -> None:
    program = """
for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter):
    driver.synchronize()
    script.standin_fail(b"cuMemAlloc_v2", 1, 2)
    try:
        call(w, name="w")
    except AssertionError as error:
        print(error)
    print(call(w, name="w").tolist())
"""
    assert alone(program) == ["cuMemAlloc_v2 returned 2", "[1.0, 1.0, 1.0, 1.0]"] * 3


def test_one_name_on_a_gpu_and_on_a_cpu_is_a_mismatch_on_every_rank_and_training_goes_on(tmp_path: Path) -> None:
    program = """
import casync.numpy

if hvd.rank() == 0:
    refused(lambda: hvd.allreduce_(w, name="w"))
else:
    refused(lambda: casync.numpy.allreduce_(numpy.ones(4, "float32"), name="w"))
print(hvd.rank(), hvd.allreduce_(w, op=hvd.Sum, name="again").tolist(), flush=True)
"""
    lines = run(2, BEGIN + program, tmp_path)
    assert [line.split()[1] for line in lines if "Error" in line] == ["MismatchError"] * 2
    assert all("Mismatched CPU/GPU device selection" in line for line in lines if "Error" in line)
    assert [line for line in lines if "2.0" in line] == [f" {rank} [2.0, 2.0, 2.0, 2.0]" for rank in range(2)]


def train_without_memory(call: str, n: int) -> str:
    """Steps of a gradient that is compressed on the GPU; in the second one a call of rank 1 finds no memory."""
    return f"""
def train(steps, fails_at=None):
    for number in range(steps):
        gradient = tensors.from_host(numpy.ones(1 << 16, "float32"))
        driver.synchronize()
        if number == fails_at and hvd.rank() == 1:
            script.standin_fail(b"{call}", {n}, 2)
        hvd.allreduce_(gradient, name="w", compression="onebit")
    return sorted(set(tensors.to_host(gradient).tolist()))


"""


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemAlloc_v2"])
def test_no_memory_for_a_residual_has_the_cpu_compute_the_step(call: str, tmp_path: Path) -> None:
    program = "print(hvd.rank(), train(3, fails_at=1), flush=True)"
    assert run(2, BEGIN + train_without_memory(call, 1) + program, tmp_path) == [" 0 [1.0]", " 1 [1.0]"]


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemAlloc_v2"])
def test_no_memory_for_a_codec_ends_the_step_on_every_rank_and_a_new_session_trains_on(
    call: str, tmp_path: Path
) -> None:
    program = f"""
refused(lambda: train(3, fails_at=1))
script.standin_fail(b"{call}", 0, 0)
hvd.shutdown()
hvd.init()
print(hvd.rank(), train(3), flush=True)
hvd.shutdown()
"""
    lines = run(2, BEGIN + train_without_memory(call, 2) + program, tmp_path)
    errors = [line for line in lines if "Error" in line]
    assert [line.split()[:2] for line in errors] == [["0", "AbortedError"], ["1", "AbortedError"]]
    assert errors[1].split()[2] == "device"
    assert all("device 0 failed: " in line and "CUDA_ERROR_OUT_OF_MEMORY" in line for line in errors), errors
    assert [line for line in lines if "Error" not in line] == [" 0 [1.0]", " 1 [1.0]"]


def test_a_tensor_that_the_program_drops_before_synchronize_is_kept_until_then() -> None:
    program = """
import gc
import weakref

script.standin_delay_copies(20, 20)
w = tensors.from_host(numpy.arange(4, dtype="float32"))
memory = weakref.ref(w.memory)
handle = hvd.allreduce_async(w, name="w")
del w
gc.collect()
print(memory() is not None, hvd.synchronize(handle).tolist())
gc.collect()
print(memory())
"""
    assert alone(program) == ["True [0.0, 1.0, 2.0, 3.0]", "None"]


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [("STANDIN_VERSION", "11080", "serves CUDA 11.8"), ("STANDIN_DEVICES", "0", "sees no device")],
)
def test_a_driver_that_cannot_be_used_is_an_error_of_the_submit(variable: str, value: str, text: str) -> None:
    """Of the tensor that it was for; tensors of the host are synchronised all the same."""
    program = """
import casync.numpy

refused(lambda: hvd.allreduce_(w, name="w"))
print(casync.numpy.allreduce(numpy.ones(2), name="of the host"))
"""
    refused, result = alone(program, **{variable: value})
    assert refused.startswith("0 DeviceError device allreduce.w ") and text in refused and "nvidia" in refused.lower()
    assert result == "[1. 1.]"


def test_a_child_that_is_forked_after_cuda_was_used_gets_errors_and_the_parent_goes_on() -> None:
    program = """
import os

import casync.cuda

hvd.allreduce_(w, name="w")
handle = hvd.allreduce_async_(w, name="w")
sys.stdout.flush()
child = os.fork()
if child == 0:
    refused(lambda: hvd.allreduce_(w, name="other"))
    refused(lambda: hvd.synchronize(handle))
    refused(casync.cuda.require)
    hvd.shutdown()
    hvd.init()
    refused(lambda: hvd.allreduce_(w, name="w"))
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hvd.synchronize(handle).tolist())
"""
    *of_child, of_parent = alone(program)
    session = "StartError start None this process was forked after init() and has no part in the session"
    cuda = "this process was forked after CUDA was used"
    for line, text in zip(of_child, (session, session, cuda, cuda), strict=True):
        assert text in line
    assert of_parent == "0 [1.0, 1.0, 1.0, 1.0]"

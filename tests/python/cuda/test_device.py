"""A real device, without any framework: the driver has what the core calls, and a tensor comes back as it was.

The first tests of `make test-gpu`. They also run on the stand-in, where CASYNC_CUDA_DRIVER names it.
"""

from __future__ import annotations

import os

import pytest

import casync.cuda
from casync.config.settings import Config
from casync.session.session import Session
from casync.tensors.signature import OpKind, OpSignature
from support.files import load

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def device() -> None:
    missing = load("tools/cuda_device.py").missing(os.environ.get("CASYNC_CUDA_DRIVER", "libcuda.so.1"))
    if missing:
        pytest.skip(missing)


def test_the_driver_has_all_that_the_core_calls() -> None:
    assert all(casync.cuda.devices())


def test_a_tensor_comes_to_the_host_and_back() -> None:
    """Copies alone: nothing is launched on the device."""
    device_memory = load("benchmarks/device_memory.py")
    memory = device_memory.DeviceMemory(8192)
    memory.host[:4096] = bytes(range(256)) * 16
    memory.to_device(0, 8192)
    terms = OpSignature("allreduce.copied", OpKind.ALLREDUCE, "uint8", (4096,), on_device=True)
    with Session(Config()) as session:
        source, target = memory.address, memory.address + 4096
        handle = session.submit(session.register(terms), source, target, None, device=device_memory.WholeDevice())
        session.synchronize(handle)
        memory.to_host(4096, 8192)
        memory.synchronize()
    assert bytes(memory.host[4096:]) == bytes(range(256)) * 16

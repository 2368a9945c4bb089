"""GPUs of several ranks send to each other by NCCL, in processes, on the stand-ins for it and for CUDA's driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.standin import driver
from support.standin.programs import BEGIN, run

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler on PATH")

SETTINGS = """
import os
os.environ.update(CASYNC_DEVICE_LANE={lane!r}, CASYNC_NCCL={nccl!r})
"""
STEPS = """
import ctypes
import hashlib
driver.current.device = hvd.local_rank()
seen = hashlib.sha256()
for step in range(5):
    host = numpy.random.default_rng(step * 10 + hvd.rank()).standard_normal(400_000).astype("float32")
    there = tensors.from_host(host)
    hvd.allreduce_(there, name="w", compression="onebit", topology="direct")
    seen.update(tensors.to_host(there).tobytes())
hvd.shutdown()
print(seen.hexdigest(), ctypes.CDLL(os.environ["CASYNC_NCCL"]).standin_nccl_groups() > 0)
"""


def test_what_ranks_exchange_by_nccl_is_what_the_host_would_carry(tmp_path: Path) -> None:
    nccl = str(driver.nccl_library())
    host, by_nccl = (
        run(2, SETTINGS.format(lane=lane, nccl=nccl) + BEGIN + STEPS, tmp_path) for lane in ("host", "nccl")
    )
    digest = host[0].split()[0]
    assert host == [f" {digest} False"] * 2
    assert by_nccl == [f" {digest} True"] * 2

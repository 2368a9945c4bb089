"""Every rank runs the same tests in the same order; each test gets a session of its own.

A test passes if it passes on all ranks: they meet at its end, and a rank whose test failed aborts the session, so that
the others stop waiting for it and fail with its text. The next test starts afresh.
"""

import random
from collections.abc import Iterator

import casync.torch as hvd
import numpy as np
import pytest
import torch
import torch.distributed as dist

from casync import default


@pytest.fixture(autouse=True)
def world():
    torch.set_num_threads(1)
    # Timeouts well below pytest's own, so that what hangs is reported by name.
    hvd.init(timeout_s=20.0, stall_warning_s=10.0)
    yield
    hvd.shutdown()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        outcome = yield
        if hvd.is_initialized():
            hvd.barrier()
        return outcome
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        if hvd.is_initialized():
            for session in default.process_sets().sessions.values():
                session.abort(f"{item.nodeid} failed on rank {hvd.rank()}: {type(error).__name__}: {error}")
        raise


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers on all ranks: a test draws every rank's tensors and takes its own."""
    random.seed(0)
    torch.manual_seed(0)
    return np.random.default_rng(0)


@pytest.fixture
def gloo(rank: int, size: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch's own process group of all ranks, for DistributedDataParallel."""
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("gloo") / "store"), 0)
    dist.init_process_group("gloo", store=dist.FileStore(path, size), rank=rank, world_size=size)
    yield
    dist.destroy_process_group()

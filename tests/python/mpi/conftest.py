"""What only PyTorch has: every rank runs the same tests (support/ranks.py)."""

import random
from collections.abc import Iterator

import casync.torch as hvd
import numpy as np
import pytest
import torch
import torch.distributed as dist

from support.ranks import pytest_runtest_call, rank, several, size, world

__all__ = ["pytest_runtest_call", "rank", "several", "size", "world"]

torch.set_num_threads(1)


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

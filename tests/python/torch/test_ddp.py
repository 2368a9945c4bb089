"""DDP's world against CaSync's, in one process: they must be one and the same."""

import casync.torch as hvd
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def gloo(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def backward():
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    model.register_comm_hook(hvd.ddp_state(compression="onebit"), hvd.ddp_hook)
    model(torch.ones(2, 100)).sum().backward()
    return model.module.weight.grad


def test_alone_under_ddp(world, gloo):
    assert torch.equal(backward(), torch.full((100, 100), 2.0))


def test_processes_that_casyncrun_did_not_start_are_told_to(world, gloo, monkeypatch):
    """As torch.multiprocessing.spawn makes them."""
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    with pytest.raises(ValueError, match=r"rank 1 of 2, and CaSync is alone: .*`casyncrun -np 2 python \.\.\.`"):
        backward()

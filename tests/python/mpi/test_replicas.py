"""The optimizer's watch over its replicas."""

import logging

import casync.torch as hvd
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("error")


def trained(model, steps, **arguments):
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
        yield optimizer.step()


def messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))


def test_one_model_is_left_in_peace(model, caplog):
    list(trained(model, 3))
    assert messages(caplog) == []


def test_ranks_that_start_apart_are_told_at_once(model, rank, size, caplog):
    with torch.no_grad():
        model[1].weight += rank
    list(trained(model, 1))
    if rank == 0 and size > 1:
        (text,) = messages(caplog)
        assert "before step 1: parameter 1.weight of rank" in text and "broadcast_parameters" in text
    else:
        assert messages(caplog) == []


def test_drift_is_found_at_the_next_check(model, rank, size, caplog, monkeypatch):
    hvd.shutdown()
    hvd.init(timeout_s=20.0, check_replicas=4)
    for step, _ in enumerate(trained(model, 6)):
        if step == 1 and rank == size - 1:
            with torch.no_grad():
                model[0].bias[2] += 1e-7
    if rank == 0 and size > 1:
        (text,) = messages(caplog)
        assert f"before step 5: parameter 0.bias of rank {size - 1} is not what it is on rank 0" in text


def test_it_can_be_switched_off(model, rank, caplog):
    hvd.shutdown()
    hvd.init(timeout_s=20.0, check_replicas=0)
    with torch.no_grad():
        model[1].weight += rank
    list(trained(model, 2))
    assert messages(caplog) == []

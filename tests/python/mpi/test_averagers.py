"""PeriodicModelAverager beside PyTorch's own."""

import casync.torch as hvd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging import averagers

from casync.errors import InvalidArgumentError
from support.local_steps import sgd, train
from support.replicas import assert_same
from support.training import make_model, new_session


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize(("period", "warmup_steps"), [(2, 0), (3, 2), (2, 5)])
def test_as_torchs_own(gloo, rank, period, warmup_steps, groups):
    model, other = make_model(), make_model()
    optimizer, others = sgd(model), sgd(other)
    ours = hvd.PeriodicModelAverager(period, warmup_steps)
    theirs = averagers.PeriodicModelAverager(period, warmup_steps)
    for number in range(8):
        train(model, optimizer, rank, [number])
        train(other, others, rank, [number])
        ours.average_parameters(optimizer.param_groups if groups else model.parameters())
        theirs.average_parameters(others.param_groups if groups else other.parameters())
        assert_same(model, other)
    assert ours.step == theirs.step == 8


def test_parameters_without_a_gradient_are_averaged(rank, size):
    """Which may have one on other ranks; and an iterator has all of them once."""
    parameters = [nn.Parameter(torch.full((3,), float(rank))), nn.Parameter(torch.tensor(1j * rank))]
    if rank == 0:
        parameters[0].grad = torch.ones(3)
    averager = hvd.PeriodicModelAverager(2)
    for _ in range(3):
        averager.average_parameters(iter([*parameters, parameters[0]]))
    torch.testing.assert_close(parameters[0].detach(), torch.full((3,), (size - 1) / 2))
    torch.testing.assert_close(parameters[1].detach(), torch.tensor(1j * (size - 1) / 2))


def test_no_codec_is_taken(rank, size):
    new_session(compression="onebit", min_numel=0)
    parameter = nn.Parameter(torch.arange(100.0) * rank)
    hvd.PeriodicModelAverager(2).average_parameters([parameter])
    torch.testing.assert_close(parameter.detach(), torch.arange(100.0) * (size - 1) / 2)


@pytest.mark.parametrize("kind", ["process_group", "process_set"])
def test_some_of_the_ranks(gloo, rank, size, several, kind):
    ranks = [0, size - 1]
    pair = hvd.ProcessSet(ranks)
    new_session(process_sets=[pair] if size > 2 else None)
    given = {"process_group": dist.new_group(ranks)} if kind == "process_group" else {}
    if kind == "process_set" and size > 2:
        given = {"process_set": pair}
    parameter = nn.Parameter(torch.full((3,), float(rank)))
    averager = hvd.PeriodicModelAverager(2, **given)
    averager.average_parameters([parameter])
    expected = (size - 1) / 2 if rank in ranks else float(rank)
    torch.testing.assert_close(parameter.detach(), torch.full((3,), expected))
    assert averager.step == 1


@pytest.mark.parametrize(
    ("arguments", "text"), [({"period": 0}, "period=0"), ({"warmup_steps": -1}, "warmup_steps=-1")]
)
def test_what_cannot_be_is_refused(arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        hvd.PeriodicModelAverager(**{"period": 2, **arguments})
    with pytest.raises(InvalidArgumentError, match=r"params has a str: give model.parameters\(\)"):
        hvd.PeriodicModelAverager(2).average_parameters(["weight"])
    with pytest.warns(UserWarning, match="period=1"):
        hvd.PeriodicModelAverager(1)

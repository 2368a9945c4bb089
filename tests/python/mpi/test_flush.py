"""flush_residuals: what was sent and what it brings are all gradients, in the scale in which the program has them."""

import casync.torch as hvd
import pytest
import torch

from casync.session import default

NUMEL = 8192


def optimizer_of(parameter, **arguments):
    return hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], **arguments)


def train(parameter, optimizer, rank, steps=3):
    """Steps whose gradients differ by rank; the sum over the steps of the mean gradient."""
    gradient = torch.linspace(-1, 2, NUMEL)
    for _ in range(steps):
        optimizer.zero_grad()
        (parameter * gradient * (1 + rank)).sum().backward()
        optimizer.step()
    return steps * gradient * (hvd.size() + 1) / 2


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ({}, 1),
        ({"gradient_predivide_factor": 2.0}, 1),
        ({"gradient_predivide_factor": 0.5}, 1),
        ({"op": hvd.Sum}, None),
    ],
    ids=["plain", "predivide 2", "predivide 0.5", "sum"],
)
@pytest.mark.parametrize("codec", ["onebit", "adacomp"])
def test_it_brings_what_is_missing(rank, size, codec, arguments, factor):
    parameter = torch.nn.Parameter(torch.zeros(NUMEL))
    optimizer = optimizer_of(parameter, compression=codec, **arguments)
    wanted = train(parameter, optimizer, rank) * (factor or size)
    optimizer.flush_residuals()
    with optimizer.skip_synchronize():
        optimizer.step()
    torch.testing.assert_close(-parameter.detach(), wanted, rtol=1e-4, atol=1e-3)
    optimizer.flush_residuals()
    assert not parameter.grad.any(), "nothing is left"


def test_without_anything_held_back_it_brings_zeros(rank, size):
    """Also in a world of one, where a gradient of the last step would be applied twice."""
    parameter = torch.nn.Parameter(torch.zeros(NUMEL))
    optimizer = optimizer_of(parameter, compression="none")
    wanted = train(parameter, optimizer, rank)
    optimizer.flush_residuals()
    assert not parameter.grad.any()
    with optimizer.skip_synchronize():
        optimizer.step()
    torch.testing.assert_close(-parameter.detach(), wanted)


def test_a_world_of_one_brings_what_was_loaded(size):
    """As after a restart of several ranks on one."""
    if size > 1:
        pytest.skip("a world of one")
    parameter = torch.nn.Parameter(torch.zeros(NUMEL))
    optimizer = optimizer_of(parameter, compression="onebit")
    held = torch.linspace(-3, 1, NUMEL)
    default.session().codec_states.set_residual("allreduce.p", held.numpy())
    optimizer.flush_residuals()
    torch.testing.assert_close(parameter.grad, held)
    optimizer.flush_residuals()
    assert not parameter.grad.any()

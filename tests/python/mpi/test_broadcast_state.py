"""broadcast_parameters and broadcast_optimizer_state."""

import casync.torch as hvd
import pytest
import torch

from support.replicas import assert_same_everywhere


def test_broadcast_parameters(rank, size):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(4, 300))
    for params in (model.state_dict(), model.named_parameters()):
        hvd.broadcast_parameters(params, root_rank=size - 1)
    for parameter in model.state_dict().values():
        assert_same_everywhere(parameter)


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, centered=True),
    lambda p: torch.optim.Adagrad(p),
], ids=["SGD", "Adam", "RMSprop", "Adagrad"])  # fmt: skip
@pytest.mark.parametrize("wrapped", [False, True])
def test_broadcast_optimizer_state(make, wrapped, rank, size):
    """Only the root has trained; afterwards all continue alike."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(10, 5)
    optimizer = make(model.parameters())
    if rank == size - 1:
        model(torch.randn(3, 10)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.0375
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
    assert optimizer.param_groups[0]["lr"] == 0.0375
    optimizer.zero_grad()
    model(torch.ones(3, 10)).sum().backward()
    optimizer.step()
    states = hvd.allgather_object((optimizer.state_dict(), model.state_dict()))
    assert all(str(state) == str(states[0]) for state in states)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_new_optimizers_state_broadcast_leaves_gradients_of_zero(wrapped):
    """As Horovod leaves them, where it steps the optimizer once; the parameters stay what they were."""
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    new, reached = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    reached.grad = torch.full((3,), 2.0)
    optimizer = torch.optim.SGD([frozen, new, reached], lr=0.1, momentum=0.9, weight_decay=0.5)
    if wrapped:
        names = [("frozen", frozen), ("new", new), ("reached", reached)]
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert frozen.grad is None and torch.equal(new.grad, torch.zeros(3)) and not new.grad.requires_grad
    assert torch.equal(reached.grad, torch.full((3,), 2.0)) and torch.equal(new.data, torch.ones(3))


def test_a_new_sparse_adams_gradients_are_sparse():
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert table.weight.grad.is_sparse
    table(torch.tensor([1])).sum().backward()
    optimizer.step()


def test_lbfgs_state_is_refused():
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))]), 0)

"""Process sets and what only PyTorch has: optimizers, gradients, parameters, sparse tensors."""

import casync.torch as hvd
import numpy as np
import pytest
import torch

from support.ranks import LIMITS


@pytest.fixture
def sets(several, size, monkeypatch):
    """The even ranks and the odd ones."""
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(**LIMITS)
    return [hvd.add_process_set(range(first, size, 2)) for first in (0, 1)]


@pytest.fixture
def mine(sets, rank):
    """The one of `sets` that this rank is in."""
    return sets[rank % 2]


def test_horovods_private_list_of_sets(size, sets):
    """Its own tests read it."""
    expected = {0: list(range(size)), 1: list(range(0, size, 2)), 2: list(range(1, size, 2))}
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == expected


def test_an_optimizer_of_a_set_that_is_not_in_use():
    parameters = [torch.ones(1, requires_grad=True)]
    with pytest.raises(ValueError, match=r"Process set provided does not exist.*ranks=\[0\].*add_process_set"):
        hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1), process_set=hvd.ProcessSet([0]))


def test_gradients_stay_in_the_set(rank, mine):
    def leaf() -> torch.Tensor:
        return torch.full((2,), 2.0, requires_grad=True)

    weight = float(rank + 1)
    of_set = [r + 1.0 for r in mine.ranks]
    (tensor := leaf()), (hvd.allreduce(tensor, op=hvd.Sum, process_set=mine) * weight).sum().backward()
    assert tensor.grad.tolist() == [sum(of_set)] * 2
    (tensor := leaf()), (hvd.allgather(tensor, process_set=mine) * weight).sum().backward()
    assert tensor.grad.tolist() == pytest.approx([sum(of_set) / len(of_set)] * 2)
    root = mine.ranks[-1]
    (tensor := leaf()), (hvd.broadcast(tensor, root, process_set=mine) * weight).sum().backward()
    assert tensor.grad.tolist() == pytest.approx([sum(of_set) / len(of_set) if rank == root else 0.0] * 2)


def test_a_reducescatter_of_a_set_has_its_gradient(rank, mine):
    n = len(mine.ranks)
    tensor = torch.full((2 * n, 3), float(rank), requires_grad=True)
    hvd.reducescatter(tensor, op=hvd.Sum, process_set=mine).sum().backward()
    assert torch.equal(tensor.grad, torch.full((2 * n, 3), float(n)))


def test_a_sparse_tensor_is_averaged_over_the_set(rank, mine):
    sparse = torch.full((2, 2), float(rank)).to_sparse()
    mean = hvd.sparse_allreduce_async(sparse, "s", hvd.Average, process_set=mine)()
    torch.testing.assert_close(mean.to_dense(), torch.full((2, 2), sum(mine.ranks) / len(mine.ranks)))


def test_parameters_are_broadcast_within_the_set(rank, mine):
    for root in mine.ranks:
        tensor = torch.full((5,), float(rank))
        hvd.broadcast_parameters({"tensor": tensor}, root, process_set=mine)
        assert torch.equal(tensor, torch.full((5,), float(root)))


def test_an_optimizer_of_a_set_steps_its_ranks_alike(rank, size, sets):
    """The others of the world make the same optimizer, and step with gradients of their own."""
    evens = sets[0]
    weight = torch.nn.Parameter(torch.zeros(300))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], process_set=evens)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * (rank + 1.0)).sum().backward()
        optimizer.step()
    expected = np.mean([r + 1.0 for r in evens.ranks]) if rank in evens.ranks else rank + 1.0
    torch.testing.assert_close(weight.detach(), torch.full((300,), -3.0 * float(expected)))

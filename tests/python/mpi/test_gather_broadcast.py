"""allgather, broadcast, barrier, and the collectives on objects that are built on them."""

import time

import casync.torch as hvd
import pytest
import torch

from support.replicas import assert_same_everywhere

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather_of_uneven_first_dimensions(dtype, rank, size):
    for step in range(3):  # rows change from call to call, under one name
        rows = [(r + step) % 4 for r in range(size)]
        mine = torch.full((rows[rank], 3, 2), rank % 2).to(dtype)
        result = hvd.allgather(mine, name="g")
        assert result.dtype == dtype and result.shape == (sum(rows), 3, 2)
        assert torch.equal(result, torch.cat([torch.full((n, 3, 2), r % 2).to(dtype) for r, n in enumerate(rows)]))


def test_allgather_of_nothing(rank, size):
    assert hvd.allgather(torch.empty(0, 5)).shape == (0, 5)
    assert hvd.allgather(torch.empty(2, 0)).shape[1] == 0


def test_allgather_of_large_and_not_contiguous(rank, size):
    base = torch.arange(400_000.0).reshape(2, 200_000).t() + rank
    result = hvd.synchronize(hvd.allgather_async(base))
    assert torch.equal(result, torch.cat([base - rank + r for r in range(size)]))
    result[0, 0] = 5  # an ordinary tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_from_every_root(dtype, rank, size):
    for root in range(size):
        for shape in [(), (0,), (7,), (50, 40)]:
            mine = torch.full(shape, rank % 2).to(dtype)
            result = hvd.broadcast(mine, root, name=f"{root}{shape}")
            assert torch.equal(result, torch.full(shape, root % 2).to(dtype))
            assert torch.equal(mine, torch.full(shape, rank % 2).to(dtype)), "the input must not change"


def test_broadcast_in_place(rank, size):
    tensor = torch.full((3, 100_000), float(rank))
    assert hvd.broadcast_(tensor, size - 1) is tensor
    assert (tensor == size - 1).all()
    view = torch.full((4, 6), float(rank)).t()[::2]
    hvd.synchronize(hvd.broadcast_async_(view, 0))
    assert (view == 0).all()
    parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
    hvd.broadcast_(parameter, 0)
    assert (parameter == 0).all() and parameter.is_leaf


def test_barrier_does_not_wait_for_outstanding_operations(rank, size):
    """Rank 0 submits late, so the others' allreduce is outstanding while they all meet."""
    handle = None if rank == 0 else hvd.allreduce_async(torch.ones(10), name="late")
    hvd.barrier()
    if handle is None:
        handle = hvd.allreduce_async(torch.ones(10), name="late")
    assert torch.allclose(hvd.synchronize(handle), torch.ones(10))


def test_barrier_waits_for_everybody(rank, size):
    hvd.barrier()
    start = time.monotonic()
    if rank == size - 1:
        time.sleep(0.3)
    hvd.barrier()
    assert time.monotonic() - start >= 0.29


def test_objects(rank, size):
    everything = hvd.allgather_object({"rank": rank, "text": "x" * (10 * rank), "tensor": torch.ones(rank)})
    assert [item["rank"] for item in everything] == list(range(size))
    assert [len(item["tensor"]) for item in everything] == list(range(size))
    for root in range(size):
        sent = hvd.broadcast_object([root, lambda value=root: value] if rank == root else None, root_rank=root)
        assert sent[0] == root and sent[1]() == root
    assert hvd.broadcast_object(b"y" * 1_000_000 if rank == 0 else None) == b"y" * 1_000_000


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

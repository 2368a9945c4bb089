"""Gradients of the blocking operations, with Horovod's conventions."""

import casync.torch as hvd
import pytest
import torch


def test_allreduce(rank, size):
    for op, expected in ((hvd.Average, (size - 1) / 2), (hvd.Sum, sum(range(size)))):
        tensor = torch.ones(3, 4, requires_grad=True)
        result = hvd.allreduce(tensor, op=op)
        assert result.requires_grad
        result.backward(torch.full((3, 4), float(rank)))
        assert torch.allclose(tensor.grad, torch.full((3, 4), float(expected)))


def test_allreduce_of_max_is_refused():
    with pytest.raises(hvd.NotAvailableError, match="detach"):
        hvd.allreduce(torch.ones(3, requires_grad=True), op=hvd.Max)


def test_grouped_allreduce(rank, size):
    tensors = [torch.ones(n, requires_grad=True) for n in (2, 3)]
    sum(result.sum() for result in hvd.grouped_allreduce(tensors, op=hvd.Sum)).backward()
    assert all(torch.equal(tensor.grad, torch.full_like(tensor, size)) for tensor in tensors)


def test_allgather(rank, size):
    tensor = torch.ones(rank + 1, 2, requires_grad=True)
    gathered = hvd.allgather(tensor)
    gathered.backward(torch.cat([torch.full((r + 1, 2), float(r)) for r in range(size)]))
    assert torch.equal(tensor.grad, torch.full((rank + 1, 2), float(rank)))


def test_broadcast(rank, size):
    tensor = torch.ones(5, requires_grad=True)
    hvd.broadcast(tensor, size - 1).sum().backward()
    assert torch.equal(tensor.grad, torch.full((5,), 1.0 if rank == size - 1 else 0.0))


def test_no_gradient_is_asked_for():
    with torch.no_grad():
        assert not hvd.allreduce(torch.ones(3, requires_grad=True)).requires_grad


def test_horovods_functions_take_horovods_arguments(rank, size):
    """And may return more gradients than there were arguments, where those are None."""
    ops = hvd.mpi_ops
    world = hvd.global_process_set
    tensor = torch.ones(size, 2, requires_grad=True)
    for result, factor in (
        (ops.HorovodAllreduce.apply(tensor, None, "sum", hvd.Sum, 1.0, 2.0, world), 2 * size),
        (ops.HorovodAllgather.apply(tensor, "all", world), 1),
        (ops.HorovodBroadcast.apply(tensor, 0, "root", world), rank == 0),
        (ops.HorovodAlltoall.apply(tensor, None, "turn", world)[0], 1),
        (ops.HorovodReducescatter.apply(tensor, "part", hvd.Sum, world, 1.0, 3.0), 3 * size),
    ):
        tensor.grad = None
        result.sum().backward()
        assert type(result.grad_fn).__name__.startswith("Horovod")
        assert torch.equal(tensor.grad, torch.full_like(tensor, float(factor))), result.grad_fn
    grouped = hvd.grouped_allreduce([tensor], op=hvd.Sum)
    assert "HorovodGroupedAllreduce" in str(grouped[0].grad_fn)

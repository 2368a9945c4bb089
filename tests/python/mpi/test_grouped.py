"""Grouped operations: one handle, results in order, gradients of all at once."""

import casync.torch as hvd
import pytest
import torch


def tensors_of(rank):
    kinds = [torch.float32, torch.int64, torch.float64, torch.float16, torch.bfloat16]
    return [torch.full((5 + i, 3), rank + i).to(dtype) for i, dtype in enumerate(kinds)]


def test_allreduce_async(rank, size):
    tensors = tensors_of(rank)
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum, name="group")
    results = hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    for i, (tensor, result) in enumerate(zip(tensors, results, strict=True)):
        assert result.dtype == tensor.dtype
        assert torch.equal(result, torch.full_like(tensor, sum(r + i for r in range(size))))
        assert torch.equal(tensor, torch.full_like(tensor, rank + i))


def test_allreduce_async_in_place(rank, size):
    tensors = [*tensors_of(rank), torch.full((4, 6), float(rank)).t()]
    results = hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Max))
    for i, (tensor, result) in enumerate(zip(tensors[:-1], results, strict=False)):
        assert result is tensor and torch.equal(tensor, torch.full_like(tensor, size - 1 + i))
    assert torch.equal(tensors[-1], torch.full((6, 4), size - 1.0))


def test_a_group_is_done_when_all_are(rank, size):
    """Its handle is that of its last member, which may be through first."""
    if size < 2:
        pytest.skip("one rank waits for nobody")
    large = torch.ones(4_000_000)
    if rank == 0:
        hvd.barrier()
    handle = hvd.grouped_allreduce_async([large, torch.ones(1)], name="poll")
    if rank > 0:
        assert not hvd.poll(handle)
        hvd.barrier()
    results = hvd.synchronize(handle)
    assert torch.equal(results[0], large) and results[1].item() == 1


def test_poll_turns_true():
    handle = hvd.grouped_allreduce_async([torch.ones(3), torch.ones(4)])
    while not hvd.poll(handle):
        pass
    assert len(hvd.synchronize(handle)) == 2


def test_allgather(rank, size):
    tensors = [torch.full((rank + i, 2), float(rank)) for i in range(3)]
    tensors.append(torch.full((1,), rank % 2 == 0))
    for results in (hvd.grouped_allgather(tensors, name="g"), hvd.synchronize(hvd.grouped_allgather_async(tensors))):
        for i in range(3):
            assert torch.equal(results[i], torch.cat([torch.full((r + i, 2), float(r)) for r in range(size)]))
        assert results[3].tolist() == [r % 2 == 0 for r in range(size)]


def test_one_mismatch_fails_the_group_and_leaves_nothing_behind(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    tensors = [torch.ones(3), torch.ones(4 + (rank == 0)), torch.ones(5)]
    with pytest.raises(hvd.MismatchError, match=r"x\.1"):
        hvd.grouped_allreduce(tensors, name="x")
    tensors[1] = torch.ones(4)
    assert all(torch.equal(result, torch.ones_like(result)) for result in hvd.grouped_allreduce(tensors, name="x"))


def test_a_bad_tensor_is_found_before_anything_is_submitted():
    with pytest.raises(ValueError, match="not a tensor"):
        hvd.grouped_allreduce([torch.ones(3), [1.0]], name="bad")
    hvd.grouped_allreduce([torch.ones(3)], name="bad")
    for empty in (hvd.grouped_allreduce_async, hvd.grouped_allgather):
        with pytest.raises(ValueError, match="no tensors"):
            empty([])


def test_gradients_of_allreduce(rank, size):
    tensors = [torch.rand(n, requires_grad=True) for n in (2, 3)]
    results = hvd.grouped_allreduce([*tensors, torch.arange(4)], op=hvd.Sum)
    assert not results[2].requires_grad
    (results[0].sum() + 2 * results[1].sum()).backward()
    assert torch.equal(tensors[0].grad, torch.full((2,), float(size)))
    assert torch.equal(tensors[1].grad, torch.full((3,), 2.0 * size))
    with pytest.raises(hvd.NotAvailableError, match="detach"):
        hvd.grouped_allreduce(tensors, op=hvd.Max)


def test_gradients_of_allgather(rank, size):
    """As of allgather: the mean over ranks of the gradients of this rank's rows."""
    tensors = [torch.rand(rank + n, 2, requires_grad=True) for n in (1, 2)]
    results = hvd.grouped_allgather([*tensors, torch.arange(3)])
    grads = [torch.cat([torch.full((r + n, 2), float(r * n)) for r in range(size)]) for n in (1, 2)]
    torch.autograd.backward(results[:2], grads)
    for n, tensor in zip((1, 2), tensors, strict=True):
        assert torch.equal(tensor.grad, torch.full((rank + n, 2), float(rank * n)))

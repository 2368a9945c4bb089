"""Grouped operations: one handle, and results in order."""

import numpy as np
import pytest

from support.arrays import full

KINDS = ("float32", "int64", "float64", "float16", "bfloat16")


def tensors_of(adaptor, rank):
    return [adaptor.full((5 + i, 3), rank + i, dtype) for i, dtype in enumerate(KINDS)]


def test_grouped_allreduce(adaptor, hvd, rank, size):
    lengths = (1, 10, 5000)
    tensors = [adaptor.full(n, rank + n) for n in lengths] + [adaptor.full(1, rank, "int32")]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
    assert len(results) == 4
    for n, result in zip(lengths, results, strict=False):
        adaptor.assert_filled(result, n, sum(range(size)) + size * n)
    adaptor.assert_filled(results[3], 1, sum(range(size)), "int32")
    if adaptor.in_place:
        assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[1] is tensors[1]
        adaptor.assert_equal(tensors[1], adaptor.array(results[1]))


def test_allreduce_async(adaptor, hvd, rank, size):
    tensors = tensors_of(adaptor, rank)
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum, name="group")
    results = hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    for i, (tensor, result) in enumerate(zip(tensors, results, strict=True)):
        adaptor.assert_filled(result, (5 + i, 3), sum(r + i for r in range(size)), KINDS[i])
        adaptor.assert_filled(tensor, (5 + i, 3), rank + i, KINDS[i])


@pytest.mark.usefixtures("in_place_forms")
def test_allreduce_async_in_place(adaptor, hvd, rank, size):
    tensors = [*tensors_of(adaptor, rank), adaptor.turned(full((6, 4), rank))]
    results = hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Max))
    assert all(result is tensor for result, tensor in zip(results, tensors, strict=True))
    for i, dtype in enumerate(KINDS):
        adaptor.assert_filled(tensors[i], (5 + i, 3), size - 1 + i, dtype)
    adaptor.assert_filled(tensors[-1], (6, 4), size - 1)


@pytest.mark.usefixtures("several")
def test_a_group_is_done_when_all_are(adaptor, hvd, rank):
    """Its handle is that of its last member, which may be through first."""
    large = adaptor.ones(4_000_000)
    if rank == 0:
        hvd.barrier()
    handle = hvd.grouped_allreduce_async([large, adaptor.ones(1)], name="poll")
    if rank > 0:
        assert not hvd.poll(handle)
        hvd.barrier()
    results = hvd.synchronize(handle)
    adaptor.assert_filled(results[0], 4_000_000, 1)
    adaptor.assert_filled(results[1], 1, 1)


def test_poll_turns_true(adaptor, hvd):
    handle = hvd.grouped_allreduce_async([adaptor.ones(3), adaptor.ones(4)])
    while not hvd.poll(handle):
        pass
    assert len(hvd.synchronize(handle)) == 2


def test_allgather(adaptor, hvd, rank, size):
    tensors = [adaptor.full((rank + i, 2), rank) for i in range(3)] + [adaptor.full(1, rank % 2 == 0, "bool")]
    for results in (hvd.grouped_allgather(tensors, name="g"), hvd.synchronize(hvd.grouped_allgather_async(tensors))):
        assert len(results) == 4
        for i in range(3):
            adaptor.assert_equal(results[i], np.concatenate([full((r + i, 2), r) for r in range(size)]))
        adaptor.assert_equal(results[3], np.array([r % 2 == 0 for r in range(size)]))


@pytest.mark.usefixtures("several")
def test_one_mismatch_fails_the_group_and_leaves_nothing_behind(adaptor, hvd, rank):
    tensors = [adaptor.ones(3), adaptor.ones(4 + (rank == 0)), adaptor.ones(5)]
    with pytest.raises(hvd.MismatchError, match=r"x\.1"):
        hvd.grouped_allreduce(tensors, name="x")
    tensors[1] = adaptor.ones(4)
    for n, result in zip((3, 4, 5), hvd.grouped_allreduce(tensors, name="x"), strict=True):
        adaptor.assert_filled(result, n, 1)


def test_a_bad_tensor_is_found_before_anything_is_submitted(adaptor, hvd):
    with pytest.raises(ValueError, match="a str is not"):
        hvd.grouped_allreduce([adaptor.ones(3), "1.0"], name="bad")
    hvd.grouped_allreduce([adaptor.ones(3)], name="bad")
    for empty in (hvd.grouped_allreduce_async, hvd.grouped_allgather):
        with pytest.raises(ValueError, match="no tensors"):
            empty([])

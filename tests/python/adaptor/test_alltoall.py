"""alltoall: unequal splits, none at all, and what it costs."""

import numpy as np
import pytest

from support.arrays import DTYPES, dtype_of, full


def dealt(rank, size, dim, dtype="float32"):
    """rank + 1 rows for each rank, which hold its number."""
    rows = np.arange(size).repeat(rank + 1).reshape(-1, *([1] * (dim - 1)))
    return np.tile(rows, (1, *([2] * (dim - 1)))).astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_equal_splits(adaptor, hvd, dtype, dim, rank, size):
    tensor = adaptor.tensor(dealt(rank, size, dim, dtype))
    output = hvd.alltoall(tensor)
    adaptor.assert_filled(output, (sum(range(1, size + 1)), *([2] * (dim - 1))), rank, dtype)
    adaptor.assert_equal(tensor, dealt(rank, size, dim, dtype))


def test_splits_of_several_kinds(adaptor, hvd, rank, size):
    received = np.arange(1, size + 1, dtype=np.int32)
    for splits in (adaptor.full(size, rank + 1, "int32"), [rank + 1] * size):
        output, counts = hvd.alltoall(adaptor.tensor(dealt(rank, size, 2)), splits)
        adaptor.assert_counts(counts, received)
        adaptor.assert_filled(output, (sum(range(1, size + 1)), 2), rank)
    output, counts = hvd.alltoall(adaptor.tensor(dealt(rank, size, 1)), adaptor.ones(0, "int32"))  # as none
    adaptor.assert_filled(output, sum(range(1, size + 1)), rank)
    adaptor.assert_equal(counts, received)


def test_every_rank_of_every_rank(adaptor, hvd, rank, size):
    """Splits that are alike nowhere, none for rank 0; rows say from whom they are and to whom they go."""
    for step in range(3):
        splits = [(rank + 1) * to + step * (to % 2) for to in range(size)]
        own = np.concatenate([full((count, 3), 100 * rank + to) for to, count in enumerate(splits)])
        output, counts = hvd.alltoall(adaptor.tensor(own), splits, name="matrix")
        expected = [(giver + 1) * rank + step * (rank % 2) for giver in range(size)]
        assert adaptor.array(counts).tolist() == expected
        wanted = np.concatenate([full((count, 3), 100 * giver + rank) for giver, count in enumerate(expected)])
        adaptor.assert_equal(output, wanted)


@pytest.mark.parametrize("shape", [(5,), (0,), (4, 0), (0, 3)])
def test_nothing_is_sent(adaptor, hvd, shape, size):
    output, counts = hvd.alltoall(adaptor.ones(shape), adaptor.full(size, 0, "int32"))
    adaptor.assert_filled(output, (0, *shape[1:]), 0)
    assert adaptor.array(counts).tolist() == [0] * size
    output, counts = hvd.alltoall(adaptor.ones((size, 0)), [1] * size)
    adaptor.assert_filled(output, (size, 0), 0)
    assert adaptor.array(counts).tolist() == [1] * size


def test_one_rank_gives_and_one_receives_nothing(adaptor, hvd, rank, size):
    splits = [0] * size if rank == 0 else [2] * size
    output, counts = hvd.alltoall(adaptor.full((sum(splits), 4), rank), splits)
    assert adaptor.array(counts).tolist() == [0] + [2] * (size - 1)
    adaptor.assert_equal(output, np.concatenate([full((2 * (r > 0), 4), r) for r in range(size)]))
    splits = [3 if to else 0 for to in range(size)]
    output, counts = hvd.alltoall(adaptor.full((sum(splits), 4), rank), splits)
    rows = 0 if rank == 0 else 3
    assert adaptor.array(counts).tolist() == [rows] * size
    adaptor.assert_equal(output, np.concatenate([full((rows, 4), r) for r in range(size)]))


def test_rows_beyond_the_splits_go_nowhere(adaptor, hvd, rank, size):
    output, _ = hvd.alltoall(adaptor.tensor(np.arange(size + 5, dtype=np.float32)), [1] * size)
    adaptor.assert_filled(output, size, rank)


def test_large(adaptor, hvd, rank, size):
    """Megabytes to everybody at once, so bodies cross on every link."""
    tensor = adaptor.tensor(np.concatenate([full(500_000, 10 * rank + to) for to in range(size)]))
    for _ in range(3):
        output = hvd.alltoall(tensor, name="large")
        adaptor.assert_equal(output, np.concatenate([full(500_000, 10 * r + rank) for r in range(size)]))


def test_only_what_goes_elsewhere_is_sent(adaptor, hvd, rank, size):
    splits = [100_000 if to == rank else 10_000 for to in range(size)]
    tensor = adaptor.ones(sum(splits))
    hvd.barrier()
    before = hvd.counters()["sent_bytes"]
    hvd.alltoall(tensor, splits)
    sent = hvd.counters()["sent_bytes"] - before
    assert 40_000 * (size - 1) <= sent < 40_000 * (size - 1) + 20_000


def test_async_gives_the_pair(adaptor, hvd, rank, size):
    handles = [hvd.alltoall_async(adaptor.full((size, i + 1), rank)) for i in range(10)]
    for i, handle in enumerate(handles):
        output, counts = hvd.synchronize(handle)
        adaptor.assert_counts(counts, full(size, 1, "int32"))
        adaptor.assert_equal(output, np.arange(size, dtype=np.float32).repeat(i + 1).reshape(size, i + 1))
        assert hvd.synchronize(handle) is None


def test_non_contiguous(adaptor, hvd, rank, size):
    tensor = adaptor.turned(np.arange(2 * size, dtype=np.float32).reshape(2, size).T)
    adaptor.assert_equal(hvd.alltoall(tensor), np.array([[rank, size + rank]] * size, np.float32))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("splits", "text"), [
    (lambda n: full((n, 1), 1, "int32"), "alltoall expects a 1D splits tensor"),
    (lambda n: full(n, 1, "int64"), "alltoall expects splits to contain 32-bit integer elements"),
    (lambda n: full(n, 1), "alltoall expects splits to contain 32-bit integer elements"),
    (lambda n: [1.0] * n, "alltoall expects splits to contain 32-bit integer elements"),
    (lambda n: [9] * n, "Sum of splits entries is greater than the first dimension"),
    (lambda n: [1] * (n + 1), "Number of entries in splits does not equal number of workers"),
    (lambda n: [-1] * n, "negative"),
])  # fmt: skip
def test_splits_that_are_refused(adaptor, hvd, splits, text, size):
    given = splits(size)
    given = adaptor.tensor(given) if isinstance(given, np.ndarray) else given
    for call in (hvd.alltoall, hvd.alltoall_async):
        with pytest.raises(ValueError, match=rf"{text}.*alltoall\.bad"):
            call(adaptor.ones((8 * size, 2)), given, name="bad")


def test_what_is_refused_at_submit(adaptor, hvd, size):
    if size > 1:
        with pytest.raises(ValueError, match="splits not provided, but first dimension"):
            hvd.alltoall(adaptor.ones(size + 1))
    with pytest.raises(ValueError, match="rank-zero"):
        hvd.alltoall(adaptor.ones(()))


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(("mine", "text"), [
    (lambda rank, size: full((size, 3 + (rank == 0)), 1), "Mismatched alltoall tensor shapes"),
    (lambda rank, size: full([size] if rank == 0 else [size, 1], 1), "Mismatched alltoall tensor shapes"),
    (lambda rank, size: full(size, 1, "int8" if rank else "float32"), "Mismatched data types"),
])  # fmt: skip
def test_ranks_that_disagree(adaptor, hvd, mine, text, rank, size):
    with pytest.raises(hvd.MismatchError, match=text):
        hvd.alltoall(adaptor.tensor(mine(rank, size)), name="x")
    result = hvd.alltoall(adaptor.tensor(np.arange(size, dtype=np.float32)), name="x")
    adaptor.assert_filled(result, size, rank)

"""alltoall: unequal splits, none at all, and what it costs."""

import casync.torch as hvd
import pytest
import torch

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.bool,
]  # fmt: skip


def dealt(rank, size, dim, dtype=torch.float32):
    """rank + 1 rows for each rank, which hold its number."""
    rows = torch.arange(size).repeat_interleave(rank + 1)
    return rows.reshape(-1, *([1] * (dim - 1))).expand(-1, *([2] * (dim - 1))).to(dtype).contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_equal_splits(dtype, dim, rank, size):
    tensor = dealt(rank, size, dim, dtype)
    output = hvd.alltoall(tensor)
    assert isinstance(output, torch.Tensor) and output.dtype == dtype
    expected = torch.full((sum(range(1, size + 1)), *([2] * (dim - 1))), rank).to(dtype)
    assert torch.equal(output, expected)
    assert torch.equal(tensor, dealt(rank, size, dim, dtype))


def test_splits_of_several_kinds(rank, size):
    for splits in (torch.full((size,), rank + 1, dtype=torch.int32), [rank + 1] * size):
        output, counts = hvd.alltoall(dealt(rank, size, 2), splits)
        assert torch.equal(counts, torch.arange(1, size + 1, dtype=torch.int32)) and counts.dtype == torch.int32
        assert torch.equal(output, torch.full((sum(range(1, size + 1)), 2), float(rank)))
    output = hvd.alltoall(dealt(rank, size, 1), torch.empty(0, dtype=torch.int32))[0]  # as none
    assert output.shape[0] == sum(range(1, size + 1))


def test_every_rank_of_every_rank(rank, size):
    """Splits that are alike nowhere, none for rank 0; rows say from whom they are and to whom they go."""
    for step in range(3):
        splits = [(rank + 1) * to + step * (to % 2) for to in range(size)]
        tensor = torch.cat([torch.full((count, 3), 100.0 * rank + to) for to, count in enumerate(splits)])
        output, counts = hvd.alltoall(tensor, splits, name="matrix")
        expected = [(giver + 1) * rank + step * (rank % 2) for giver in range(size)]
        assert counts.tolist() == expected
        wanted = torch.cat([torch.full((count, 3), 100.0 * giver + rank) for giver, count in enumerate(expected)])
        assert torch.equal(output, wanted)


@pytest.mark.parametrize("shape", [(5,), (0,), (4, 0), (0, 3)])
def test_nothing_is_sent(shape, size):
    output, counts = hvd.alltoall(torch.ones(shape), torch.zeros(size, dtype=torch.int32))
    assert output.shape == (0, *shape[1:]) and counts.tolist() == [0] * size
    output, counts = hvd.alltoall(torch.ones(size, 0), [1] * size)
    assert output.shape == (size, 0) and counts.tolist() == [1] * size


def test_one_rank_gives_and_one_receives_nothing(rank, size):
    splits = [0] * size if rank == 0 else [2] * size
    output, counts = hvd.alltoall(torch.full((sum(splits), 4), float(rank)), splits)
    assert counts.tolist() == [0] + [2] * (size - 1) and output.shape == (2 * (size - 1), 4)
    splits = [3 if to else 0 for to in range(size)]
    output, counts = hvd.alltoall(torch.full((sum(splits), 4), float(rank)), splits)
    assert output.shape == ((0, 4) if rank == 0 else (3 * size, 4))


def test_rows_beyond_the_splits_go_nowhere(rank, size):
    tensor = torch.arange(size + 5.0, requires_grad=True)
    output, _ = hvd.alltoall(tensor, [1] * size)
    assert torch.equal(output, torch.full((size,), float(rank)))
    output.sum().backward()
    assert torch.equal(tensor.grad, torch.tensor([1.0] * size + [0.0] * 5))


def test_large(rank, size):
    """Megabytes to everybody at once, so bodies cross on every link."""
    tensor = torch.cat([torch.full((500_000,), float(10 * rank + to)) for to in range(size)])
    for _ in range(3):
        output = hvd.alltoall(tensor, name="large")
        assert torch.equal(output, torch.cat([torch.full((500_000,), float(10 * r + rank)) for r in range(size)]))


def test_only_what_goes_elsewhere_is_sent(rank, size):
    splits = [100_000 if to == rank else 10_000 for to in range(size)]
    tensor = torch.ones(sum(splits))
    hvd.barrier()
    before = hvd.counters()["sent_bytes"]
    hvd.alltoall(tensor, splits)
    sent = hvd.counters()["sent_bytes"] - before
    assert 40_000 * (size - 1) <= sent < 40_000 * (size - 1) + 20_000


def test_async_gives_the_pair(rank, size):
    handles = [hvd.alltoall_async(torch.full((size, i + 1), float(rank))) for i in range(10)]
    for i, handle in enumerate(handles):
        output, counts = hvd.synchronize(handle)
        assert output.shape == (size, i + 1) and counts.tolist() == [1] * size
        assert torch.equal(output[:, 0], torch.arange(float(size)))


def test_non_contiguous(rank, size):
    tensor = torch.arange(float(2 * size)).reshape(2, size).t()
    assert torch.equal(hvd.alltoall(tensor), torch.tensor([[rank, size + rank]] * size).float())


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("splits", "text"), [
    (lambda n: torch.ones(n, 1, dtype=torch.int32), "alltoall expects a 1D splits tensor"),
    (lambda n: torch.ones(n, dtype=torch.int64), "alltoall expects splits to contain 32-bit integer elements"),
    (lambda n: torch.ones(n), "alltoall expects splits to contain 32-bit integer elements"),
    (lambda n: [1.0] * n, "alltoall expects splits to contain 32-bit integer elements"),
    (lambda n: [9] * n, "Sum of splits entries is greater than the first dimension"),
    (lambda n: [1] * (n + 1), "Number of entries in splits does not equal number of workers"),
    (lambda n: [-1] * n, "negative"),
])  # fmt: skip
def test_splits_that_are_refused(splits, text, size):
    with pytest.raises(ValueError, match=rf"{text}.*alltoall\.bad"):
        hvd.alltoall(torch.ones(8 * size, 2), splits(size), name="bad")


def test_what_is_refused_at_submit(size):
    if size > 1:
        with pytest.raises(ValueError, match="splits not provided, but first dimension"):
            hvd.alltoall(torch.ones(size + 1))
    with pytest.raises(ValueError, match="rank-zero"):
        hvd.alltoall(torch.tensor(1.0))


@pytest.mark.parametrize(("mine", "text"), [
    (lambda rank, size: torch.ones(size, 3 + (rank == 0)), "Mismatched alltoall tensor shapes"),
    (lambda rank, size: torch.ones([size] if rank == 0 else [size, 1]), "Mismatched alltoall tensor shapes"),
    (lambda rank, size: torch.ones(size, dtype=torch.int8 if rank else torch.float32), "Mismatched data types"),
])  # fmt: skip
def test_ranks_that_disagree(mine, text, rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(hvd.MismatchError, match=text):
        hvd.alltoall(mine(rank, size), name="x")
    assert torch.equal(hvd.alltoall(torch.arange(float(size)), name="x"), torch.full((size,), float(rank)))


# --- autograd ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False])
def test_gradient(given, rank, size):
    tensor = dealt(rank, size, 2).requires_grad_()
    output = hvd.alltoall(tensor, [rank + 1] * size)[0] if given else hvd.alltoall(tensor)
    output.backward(torch.full_like(output, rank + 1.0))
    assert torch.equal(tensor.grad, dealt(rank, size, 2) + 1)  # from rank r comes r + 1

"""allreduce against references computed by numpy on every rank from all ranks' tensors."""

import casync.torch as hvd
import numpy as np
import pytest
import torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
SHAPES = [(), (1,), (17,), (5, 7), (0, 3), (3, 0), (4, 3, 2, 5), (70_001,)]
TOPOLOGIES = ["auto", "direct", "ps", "ring", "two_level"]
OPS = {"Sum": hvd.Sum, "Average": hvd.Average, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}
# One rounding per hop or one in all, of values around 1.
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def draw(rng, shape, dtype, size):
    """One tensor per rank, with values whose sums and products fit the dtype."""
    low = 0 if dtype == torch.uint8 else -2
    values = rng.uniform(-2, 2, (size, *shape)) if dtype.is_floating_point else rng.integers(low, 3, (size, *shape))
    return [torch.tensor(value).to(dtype) for value in values]


def reference(tensors, op):
    """In float64, exact for integers; an integer average truncates towards zero."""
    stack = np.stack([tensor.double().numpy() for tensor in tensors])
    functions = {hvd.Sum: np.sum, hvd.Average: np.mean, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}
    result = functions[op](stack, axis=0)
    return result if tensors[0].dtype.is_floating_point else np.trunc(result)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_every_op_and_dtype(dtype, op, rng, rank, size):
    for shape in SHAPES:
        tensors = draw(rng, shape, dtype, size)
        mine = tensors[rank].clone()
        result = hvd.allreduce(mine, op=op, name=f"{shape}")
        assert result.dtype == dtype and result.shape == torch.Size(shape)
        assert torch.equal(mine, tensors[rank]), "the input must not change"
        tolerance = TOLERANCE.get(dtype, 0) * (size if op != hvd.Product else 2**size)
        np.testing.assert_allclose(result.double().numpy(), reference(tensors, op), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("shape", [(33,), (4096,), (300, 1000)], ids=str)
def test_every_topology_gives_all_ranks_the_same_bits(shape, topology, rng, rank, size):
    tensors = draw(rng, shape, torch.float32, size)
    result = hvd.allreduce(tensors[rank], name="t", topology=topology)
    np.testing.assert_allclose(result.numpy(), reference(tensors, hvd.Average), rtol=1e-5, atol=1e-6)
    for other in hvd.allgather(result.reshape(1, -1)):
        assert torch.equal(other, result.flatten())


@pytest.mark.parametrize("topology", ["direct", "ps"])
@pytest.mark.parametrize("numel", [5, 1000, 40_000, 1_200_000])
def test_the_default_path_adds_in_rank_order(topology, numel, rng, rank, size):
    tensors = draw(rng, (numel,), torch.float32, size)
    expected = tensors[0].numpy().copy()
    for tensor in tensors[1:]:
        expected += tensor.numpy()
    assert np.array_equal(hvd.allreduce(tensors[rank], op=hvd.Sum, topology=topology).numpy(), expected)
    average = hvd.allreduce(tensors[rank], topology=topology).numpy()
    assert np.array_equal(average, expected / np.float32(size))


def test_in_place_returns_the_same_tensor(rank, size):
    tensor = torch.full((10_000,), float(rank))
    pointer = tensor.data_ptr()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert tensor.data_ptr() == pointer and tensor[7] == sum(range(size))


def test_not_contiguous_tensors(rank, size):
    base = torch.arange(24.0).reshape(4, 6) + rank
    mean = torch.arange(24.0).reshape(4, 6) + (size - 1) / 2
    assert torch.allclose(hvd.allreduce(base.t()), mean.t())
    view = base[:, ::2]
    assert hvd.allreduce_(view) is view
    assert torch.allclose(view, mean[:, ::2]) and torch.equal(base[:, 1::2], (mean - (size - 1) / 2 + rank)[:, 1::2])
    channels_last = (torch.arange(48.0).reshape(2, 3, 4, 2) + rank).to(memory_format=torch.channels_last)
    hvd.allreduce_(channels_last)
    assert torch.allclose(channels_last, torch.arange(48.0).reshape(2, 3, 4, 2) + (size - 1) / 2)


def test_prescale_and_postscale(rank, size):
    tensor = torch.full((100,), rank + 1.0)
    result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.allclose(result, torch.full((100,), 1.5 * sum(range(1, size + 1))))
    integers = torch.full((100,), rank + 1)
    assert hvd.allreduce(integers, op=hvd.Sum, prescale_factor=2.0)[0] == 2 * sum(range(1, size + 1))


@pytest.mark.parametrize("in_place", [False, True])
def test_integers_are_scaled_in_double_precision_and_truncated(rank, size, in_place):
    allreduce = hvd.allreduce_ if in_place else hvd.allreduce
    values = torch.tensor([5, -5, 7, 2**40 + 1]) + 2 * rank
    each = [[int(0.7 * (value + 2 * r)) for value in (5, -5, 7, 2**40 + 1)] for r in range(size)]
    result = allreduce(values.clone(), op=hvd.Sum, prescale_factor=0.7)
    assert result.tolist() == [sum(of) for of in zip(*each, strict=True)]
    result = allreduce(values.clone(), op=hvd.Sum, postscale_factor=0.7)
    total = [sum(value + 2 * r for r in range(size)) for value in (5, -5, 7, 2**40 + 1)]
    assert result.tolist() == [int(0.7 * value) for value in total]


@pytest.mark.parametrize("numel", [5, 5000])
def test_a_mean_is_the_sum_divided(rank, size, numel):
    """To the last bit, as numpy divides, not times 1/N."""
    values = (torch.arange(numel, dtype=torch.float32) + 1) * (rank + 1)  # the sum has no rounding
    result = hvd.allreduce(values)
    assert torch.equal(result, (torch.arange(numel, dtype=torch.float32) + 1) * (size * (size + 1) // 2) / size)


def test_double_is_scaled_in_double_precision(rank, size):
    values = torch.linspace(-1, 1, 101, dtype=torch.float64) * (rank + 1)
    result = hvd.allreduce(values, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=1 / 7)
    expected = torch.linspace(-1, 1, 101, dtype=torch.float64) * (sum(range(1, size + 1)) / 21)
    torch.testing.assert_close(result, expected, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("topology", ["direct", "ps", "ring"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_prescale_comes_before_the_sum_and_rounds_to_the_dtype(rank, size, dtype, topology):
    """So a sum that would overflow does not, and what each rank contributes is what it would have scaled itself."""
    values = torch.full((3000,), 0.9 * torch.finfo(dtype).max, dtype=dtype)  # one sum, in whatever order it is formed
    factor = 0.3 / size
    result = hvd.allreduce(values, op=hvd.Sum, prescale_factor=factor, topology=topology)
    by_hand = hvd.allreduce(values * factor, op=hvd.Sum, topology=topology)
    assert result.isfinite().all() and torch.equal(result, by_hand)


def test_scaled_in_place_and_in_groups(rank, size):
    base = torch.arange(24.0).reshape(4, 6) * (rank + 1)
    expected = torch.arange(24.0).reshape(4, 6) * (0.5 * 3.0 * sum(range(1, size + 1)))
    view = base.t()
    assert hvd.allreduce_(view, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0) is view
    assert torch.equal(base, expected)
    parts = [torch.arange(24.0).reshape(4, 6) * (rank + 1), torch.full((2,), rank + 1.0)]
    reduced = hvd.grouped_allreduce_(parts, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.equal(parts[0], expected) and torch.equal(reduced[0], expected)
    assert parts[1][0] == 1.5 * sum(range(1, size + 1))


def test_many_outstanding_in_another_order_on_each_rank(rank, size):
    tensors = [torch.full((i + 1,), float(i + rank)) for i in range(100)]
    order = sorted(range(100), key=lambda i: (i * 37 + rank * 11) % 100)
    handles = {i: hvd.allreduce_async_(tensors[i], name=f"t{i}") for i in order}
    for i in range(100):
        assert hvd.synchronize(handles[i]) is not None
        assert torch.allclose(tensors[i], torch.full((i + 1,), i + (size - 1) / 2))
    assert hvd.synchronize(handles[0]) is None


def test_poll_and_synchronize(rank, size):
    handle = hvd.allreduce_async(torch.full((1000,), float(rank)), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle)[0] == sum(range(size))


def test_grouped(rank, size):
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 10, 5000)] + [torch.tensor([rank], dtype=torch.int32)]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
    for n, result in zip((1, 10, 5000), results, strict=False):
        assert torch.equal(result, torch.full((n,), float(sum(range(size)) + size * n)))
    assert results[3].item() == sum(range(size))
    assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[1] is tensors[1]
    assert torch.equal(tensors[1], results[1])


@pytest.mark.parametrize("codec", ["fp16", "bf16", "onebit", "terngrad(bits=4)", hvd.Compression.onebit()], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_codecs_give_all_ranks_the_same_bits(codec, dtype, rng, rank, size):
    tensors = draw(rng, (200, 100), dtype, size)
    result = hvd.allreduce(tensors[rank], compression=codec, name="t")
    for other in hvd.allgather(result.reshape(1, -1).view(torch.uint8)):
        assert torch.equal(other, result.flatten().view(torch.uint8))
    assert torch.isfinite(result).all()


def test_fp16_lets_integers_pass(rank, size):
    total = hvd.allreduce(torch.full((5000,), 100_000 + rank), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert total[0] == 100_000 * size + sum(range(size))


def test_small_tensors_go_uncompressed(rank, size):
    exact = torch.linspace(0, 1, 1000)
    assert torch.equal(hvd.allreduce(exact, op=hvd.Max, name="a"), exact)
    assert torch.allclose(hvd.allreduce(exact, compression="onebit", name="b"), exact, rtol=1e-6)


def test_nan_and_inf_travel_through(rank, size):
    tensor = torch.zeros(100)
    if rank == size - 1:
        tensor[3], tensor[4] = float("nan"), float("inf")
    result = hvd.allreduce(tensor)
    assert result[3].isnan() and result[4].isinf() and result[5] == 0


def test_a_name_that_is_used_again_in_place(rng, rank, size):
    """Of one shape, whole on some ranks and a part of another tensor elsewhere, whose other elements stay."""
    tensors = draw(rng, (40, 3), torch.float32, size)
    for turn in range(6):
        whole = torch.full((40, 6), -1.0)
        mine = whole[:, ::2] if (rank + turn) % 2 else torch.empty(40, 3)
        mine.copy_(tensors[rank])
        assert hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, name="again")) is mine
        np.testing.assert_allclose(mine.numpy(), reference(tensors, hvd.Sum), rtol=1e-5, atol=1e-6)
        assert torch.equal(whole[:, 1::2], torch.full((40, 3), -1.0))


def test_a_known_name_with_another_dtype_on_one_rank_is_a_mismatch(rank, size):
    if size < 2:
        pytest.skip("one rank agrees with itself")
    for _ in range(2):
        hvd.allreduce_(torch.ones(40), name="again")
    handle = hvd.allreduce_async_(torch.ones(40, dtype=torch.float64 if rank else torch.float32), name="again")
    with pytest.raises(hvd.MismatchError, match="again"):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    assert torch.equal(hvd.allreduce_(torch.ones(40), name="again"), torch.ones(40))

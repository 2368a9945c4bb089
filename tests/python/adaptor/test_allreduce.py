"""allreduce against references computed by NumPy on every rank from all ranks' tensors."""

import numpy as np
import pytest

from casync.tensors.signature import Average, Max, Min, Product, Sum
from support.arrays import DTYPES, FLOATS, INTEGERS, draw, full

SHAPES = [(), (1,), (17,), (5, 7), (0, 3), (3, 0), (4, 3, 2, 5), (70_001,)]
TOPOLOGIES = ["auto", "direct", "ps", "ring", "two_level"]
OPS = {"Sum": Sum, "Average": Average, "Min": Min, "Max": Max, "Product": Product}
# One rounding per hop or one in all, of values around 1.
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 4e-3, "bfloat16": 3e-2}


def reference(arrays, op):
    """In float64, exact for integers; an integer average truncates towards zero."""
    stack = np.stack([array.astype(np.float64) for array in arrays])
    functions = {Sum: np.sum, Average: np.mean, Min: np.min, Max: np.max, Product: np.prod}
    result = functions[op](stack, axis=0)
    return result if arrays[0].dtype.name in FLOATS else np.trunc(result)


def test_ops_have_horovods_numbers(hvd):
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_op_and_dtype(adaptor, hvd, dtype, op, rng, rank, size):
    for shape in SHAPES:
        arrays = draw(rng, shape, dtype, size)
        mine = adaptor.tensor(arrays[rank])
        result = hvd.allreduce(mine, op=op, name=f"{shape}")
        adaptor.assert_equal(mine, arrays[rank])  # the input must not change
        tolerance = TOLERANCE.get(dtype, 0) * (size if op != Product else 2**size)
        adaptor.assert_close(result, reference(arrays, op), dtype, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("shape", [(33,), (4096,), (300, 1000)], ids=str)
def test_every_topology_gives_all_ranks_the_same_bits(adaptor, hvd, shape, topology, rng, rank, size):
    arrays = draw(rng, shape, "float32", size)
    result = hvd.allreduce(adaptor.tensor(arrays[rank]), name="t", topology=topology)
    adaptor.assert_close(result, reference(arrays, Average), rtol=1e-5, atol=1e-6)
    adaptor.assert_same_bits_everywhere(result)


@pytest.mark.parametrize("topology", ["direct", "ps"])
@pytest.mark.parametrize("numel", [5, 1000, 40_000, 1_200_000])
def test_the_default_path_adds_in_rank_order(adaptor, hvd, topology, numel, rng, rank, size):
    arrays = draw(rng, (numel,), "float32", size)
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    mine = adaptor.tensor(arrays[rank])
    adaptor.assert_equal(hvd.allreduce(mine, op=hvd.Sum, topology=topology), expected)
    adaptor.assert_equal(hvd.allreduce(mine, topology=topology), expected / np.float32(size))


@pytest.mark.usefixtures("in_place_forms")
def test_in_place_returns_the_same_tensor(adaptor, hvd, rank, size):
    tensor = adaptor.full(10_000, rank)
    there = adaptor.memory(tensor)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert there()
    adaptor.assert_filled(tensor, 10_000, sum(range(size)))


@pytest.mark.usefixtures("in_place_forms")
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_in_place_every_dtype_is_as_it_is_out_of_place(adaptor, hvd, dtype, rng, rank, size):
    arrays = draw(rng, (13, 11), dtype, size)
    mine = adaptor.tensor(arrays[rank])
    result = hvd.allreduce(mine, op=hvd.Average, name="out of place")
    assert hvd.allreduce_(mine, op=hvd.Average, name="in place") is mine
    adaptor.assert_equal(mine, adaptor.array(result))


def test_not_contiguous_tensors(adaptor, hvd, rank, size):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    mean = base + np.float32((size - 1) / 2)
    adaptor.assert_close(hvd.allreduce(adaptor.turned(base + np.float32(rank))), mean, rtol=1e-5, atol=1e-8)
    view, _ = adaptor.gapped(base + np.float32(rank))
    adaptor.assert_close(hvd.allreduce(view), mean, rtol=1e-5, atol=1e-8)
    adaptor.assert_equal(view, base + np.float32(rank))


@pytest.mark.usefixtures("in_place_forms")
def test_not_contiguous_tensors_in_place(adaptor, hvd, rank, size):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    mean = base + np.float32((size - 1) / 2)
    view, between = adaptor.gapped(base + np.float32(rank))
    assert hvd.allreduce_(view) is view
    adaptor.assert_close(view, mean, rtol=1e-5, atol=1e-8)
    adaptor.assert_equal(between, base + np.float32(rank))
    turned = adaptor.turned(base + np.float32(rank))
    assert hvd.synchronize(hvd.allreduce_async_(turned)) is turned
    adaptor.assert_close(turned, mean, rtol=1e-5, atol=1e-8)


def test_many_outstanding_in_another_order_on_each_rank(adaptor, hvd, rank, size):
    tensors = [adaptor.full(i + 1, i + rank) for i in range(100)]
    order = sorted(range(100), key=lambda i: (i * 37 + rank * 11) % 100)
    submit = hvd.allreduce_async_ if adaptor.in_place else hvd.allreduce_async
    handles = {i: submit(tensors[i], name=f"t{i}") for i in order}
    for i in range(100):
        result = hvd.synchronize(handles[i])
        assert result is tensors[i] or not adaptor.in_place
        adaptor.assert_close(result, np.full(i + 1, i + (size - 1) / 2), rtol=1e-5, atol=1e-8)
    assert hvd.synchronize(handles[0]) is None


def test_poll_and_synchronize(adaptor, hvd, rank, size):
    handle = hvd.allreduce_async(adaptor.full(1000, rank), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    adaptor.assert_filled(hvd.synchronize(handle), 1000, sum(range(size)))


def test_of_small_operations_some_are_outstanding_when_submit_returns(adaptor, hvd, rank, size):
    """Horovod's own test: of 15, at least one poll is False at once. In a world of one an operation has nobody to wait
    for, and may be over.
    """
    tensors = [adaptor.full((17,) * dim, rank) for dim in (1, 2, 3) for _ in range(5)]
    outstanding, handles = 0, []
    for tensor in tensors:
        handles.append(hvd.allreduce_async(tensor, op=hvd.Sum))
        outstanding += not hvd.poll(handles[-1])
    for tensor, handle in zip(tensors, handles, strict=True):
        adaptor.assert_filled(hvd.synchronize(handle), adaptor.array(tensor).shape, sum(range(size)))
    assert outstanding or size == 1


def test_the_mean_of_small_integers_is_zero(adaptor, hvd, rank, size):
    """Of either sign: it truncates towards zero."""
    for sign in (1, -1):
        mine = adaptor.full(9, sign if rank == size - 1 else 0, "int32")
        adaptor.assert_filled(hvd.allreduce(mine), 9, sign if size == 1 else 0, "int32")


def test_op_or_average_says_how_to_reduce(adaptor, hvd, rank, size):
    """`average` is Horovod's older word for it."""
    mine = adaptor.full(5, rank)
    with pytest.warns(DeprecationWarning, match="average"):
        adaptor.assert_filled(hvd.allreduce(mine, average=False), 5, sum(range(size)))
    with pytest.warns(DeprecationWarning, match="average"):
        adaptor.assert_filled(hvd.allreduce(mine, average=True), 5, (size - 1) / 2)
    with pytest.warns(DeprecationWarning, match="average"):
        (result,) = hvd.grouped_allreduce([mine], average=False)
    adaptor.assert_filled(result, 5, sum(range(size)))
    for call in (hvd.allreduce, hvd.allreduce_async):
        with pytest.raises(ValueError, match="The op parameter supersedes average. Please provide only one of them."):
            call(mine, average=True, op=hvd.Sum)
        with pytest.raises(ValueError, match="is not one of Average, Sum"):
            call(mine, op=6)


def test_no_bool_is_reduced(adaptor, hvd):
    with pytest.raises(ValueError, match="bool cannot be reduced"):
        hvd.allreduce(adaptor.ones(3, "bool"))
    assert "bool" in DTYPES


@pytest.mark.parametrize("codec", ["fp16", "bf16", "onebit", "terngrad(bits=4)", "Compression.onebit()"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_codecs_give_all_ranks_the_same_bits(adaptor, hvd, codec, dtype, rng, rank, size):
    arrays = draw(rng, (200, 100), dtype, size)
    compression = hvd.Compression.onebit() if codec.startswith("Compression") else codec
    result = hvd.allreduce(adaptor.tensor(arrays[rank]), compression=compression, name="t")
    adaptor.assert_same_bits_everywhere(result)
    assert np.isfinite(adaptor.array(result).astype(np.float64)).all()


def test_fp16_lets_integers_pass(adaptor, hvd, rank, size):
    mine = adaptor.full(5000, 100_000 + rank, "int64")
    total = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
    adaptor.assert_filled(total, 5000, 100_000 * size + sum(range(size)), "int64")


def test_small_tensors_go_uncompressed(adaptor, hvd, rank, size):
    exact = np.linspace(0, 1, 1000, dtype=np.float32)
    adaptor.assert_equal(hvd.allreduce(adaptor.tensor(exact), op=hvd.Max, name="a"), exact)
    result = hvd.allreduce(adaptor.tensor(exact), compression="onebit", name="b")
    adaptor.assert_close(result, exact, rtol=1e-6, atol=1e-8)


def test_nan_and_inf_travel_through(adaptor, hvd, rank, size):
    mine = full(100, 0)
    if rank == size - 1:
        mine[3], mine[4] = np.nan, np.inf
    result = adaptor.array(hvd.allreduce(adaptor.tensor(mine)))
    assert np.isnan(result[3]) and np.isinf(result[4]) and not result[5:].any() and not result[:3].any()


@pytest.mark.usefixtures("in_place_forms")
def test_a_name_that_is_used_again_in_place(adaptor, hvd, rng, rank, size):
    """Of one shape, whole on some ranks and a part of another tensor elsewhere, whose other elements stay."""
    arrays = draw(rng, (40, 3), "float32", size)
    for turn in range(6):
        if (rank + turn) % 2:
            mine, between = adaptor.gapped(arrays[rank])
        else:
            mine, between = adaptor.tensor(arrays[rank]), adaptor.tensor(arrays[rank])
        assert hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, name="again")) is mine
        adaptor.assert_close(mine, reference(arrays, Sum), rtol=1e-5, atol=1e-6)
        adaptor.assert_equal(between, arrays[rank])


@pytest.mark.usefixtures("several")
def test_a_known_name_with_another_dtype_on_one_rank_is_a_mismatch(adaptor, hvd, rank, size):
    reduce = hvd.allreduce_ if adaptor.in_place else hvd.allreduce
    submit = hvd.allreduce_async_ if adaptor.in_place else hvd.allreduce_async
    for _ in range(2):
        reduce(adaptor.ones(40), name="again")
    handle = submit(adaptor.ones(40, "float64" if rank else "float32"), name="again")
    with pytest.raises(hvd.MismatchError, match="again"):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    adaptor.assert_filled(reduce(adaptor.ones(40), name="again"), 40, 1)

"""reducescatter and grouped_reducescatter: each rank is left with its rows of the sum."""

import math

import numpy as np
import pytest

from support.arrays import DTYPES, FLOATS, INTEGERS, draw, dtype_of, full


def own_rows(array, rank, size):
    """The first rows % size ranks have one row more."""
    counts = [array.shape[0] // size + (r < array.shape[0] % size) for r in range(size)]
    begin = sum(counts[:rank])
    return array[begin : begin + counts[rank]]


def of_rank(rank, shape, dtype):
    return (np.arange(math.prod(shape)).reshape(shape) % 7 + rank).astype(dtype_of(dtype))


def total_of(shape, size):
    return sum(of_rank(r, shape, "float64") for r in range(size))


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("shape", [(12,), (12, 3), (13, 2, 5), (2, 3), (1, 4), (0, 3), (4, 0)])
def test_sum_and_average(adaptor, hvd, dtype, shape, rank, size):
    tensor = adaptor.tensor(of_rank(rank, shape, dtype))
    mine = own_rows(total_of(shape, size), rank, size)
    adaptor.assert_equal(hvd.reducescatter(tensor, op=hvd.Sum), mine.astype(dtype_of(dtype)))
    adaptor.assert_equal(tensor, of_rank(rank, shape, dtype))
    mean = hvd.reducescatter(tensor)
    if dtype in INTEGERS:
        adaptor.assert_close(mean, np.trunc(mine / size), dtype, rtol=0)
    else:
        adaptor.assert_close(mean, mine / size, dtype, rtol=1e-2)


def test_more_than_one_partition(adaptor, hvd, rng, rank, size):
    """Megabytes, so that every rank's rows travel in several messages."""
    arrays = [rng.random((1001, 700), dtype=np.float32) for _ in range(size)]
    result = hvd.reducescatter(adaptor.tensor(arrays[rank]), op=hvd.Sum, name="large")
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    adaptor.assert_equal(result, own_rows(total, rank, size))


def test_what_is_sent_is_what_others_keep(adaptor, hvd, size):
    """Half of a parameter server: (N-1)/N of the tensor, and neither more nor less comes in."""
    tensor = adaptor.ones(size * 100_000)
    hvd.barrier()
    before = hvd.counters()["sent_bytes"]
    hvd.reducescatter(tensor, name="counted")
    sent = hvd.counters()["sent_bytes"] - before
    assert 400_000 * (size - 1) <= sent < 400_000 * (size - 1) + 20_000


def test_scale_factors(adaptor, hvd, rank, size):
    tensor = adaptor.full((2 * size, 3), rank + 1)
    total = sum(range(1, size + 1))
    result = hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    adaptor.assert_filled(result, (2, 3), total * 1.5)
    result = hvd.reducescatter(tensor, op=hvd.Average, prescale_factor=2.0)
    adaptor.assert_close(result, np.full((2, 3), total * 2.0 / size), rtol=1.3e-6, atol=1e-5)


def test_scale_factors_of_integers_and_doubles(adaptor, hvd, rank, size):
    summed = hvd.reducescatter(adaptor.full((size, 1), 5 + 2 * rank, "int64"), op=hvd.Sum, prescale_factor=0.7)
    adaptor.assert_filled(summed, (1, 1), sum(int(0.7 * (5 + 2 * r)) for r in range(size)), "int64")
    values = adaptor.full((size, 1), 5 + 2 * rank, "float64")
    (summed,) = hvd.grouped_reducescatter([values], op=hvd.Sum, postscale_factor=1 / 3)
    adaptor.assert_close(summed, [[sum(5 + 2 * r for r in range(size)) / 3]], "float64", rtol=1e-15)


def test_async_and_non_contiguous(adaptor, hvd, rank, size):
    tensors = [adaptor.turned(full((size, i + 1), rank)) for i in range(15)]
    handles = [hvd.reducescatter_async(tensor, op=hvd.Sum) for tensor in tensors]
    for i, handle in enumerate(handles):
        adaptor.assert_filled(hvd.synchronize(handle), (1, i + 1), sum(range(size)))
        assert hvd.synchronize(handle) is None


def test_grouped(adaptor, hvd, rank, size):
    kinds = FLOATS + INTEGERS
    shapes = [(size + i, 2) for i in range(len(kinds))]
    tensors = [adaptor.tensor(of_rank(rank, shape, dtype)) for shape, dtype in zip(shapes, kinds, strict=True)]
    handle = hvd.grouped_reducescatter_async(tensors, op=hvd.Sum, name="group")
    results = hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    for again in (results, hvd.grouped_reducescatter(tensors, op=hvd.Sum)):
        for shape, dtype, result in zip(shapes, kinds, again, strict=True):
            adaptor.assert_equal(result, own_rows(total_of(shape, size), rank, size).astype(dtype_of(dtype)))


# --- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["fp16", "bf16", "onebit", "terngrad(bits=8)"])
def test_mass_is_conserved(adaptor, hvd, codec, rng, rank, size):
    """Over steps, what arrived is what was given, but for what the residuals still hold."""
    steps, shape = 30, (101, 257)
    given, got = np.zeros(shape), 0
    for _ in range(steps):
        arrays = [rng.random(shape, dtype=np.float32) - np.float32(0.5) for _ in range(size)]
        given += sum(array.astype(np.float64) for array in arrays)
        result = hvd.reducescatter(adaptor.tensor(arrays[rank]), name=f"mass.{codec}", compression=codec, op=hvd.Sum)
        got = got + adaptor.array(result).astype(np.float64)
    wanted = own_rows(given, rank, size)
    error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert error < (0.5 if codec == "onebit" else 0.05), error


@pytest.mark.usefixtures("several")
def test_what_a_codec_held_back_waits_for_the_next_that_does(adaptor, hvd, rng, rank, size):
    arrays = [array / np.float32(4) for array in draw(rng, (size * 3000, 2), "float32", size)]
    tensor = adaptor.tensor(arrays[rank])
    hvd.reducescatter(tensor, name="change", compression="onebit")
    total = sum(array.astype(np.float64) for array in arrays)
    exact = hvd.reducescatter(tensor, name="change", compression="none", op=hvd.Sum)
    adaptor.assert_close(exact, own_rows(total, rank, size), rtol=1.3e-6, atol=1e-5)
    late = hvd.reducescatter(adaptor.full((size * 3000, 2), 0), name="change", compression="onebit")
    assert np.abs(adaptor.array(late)).sum() > 0


@pytest.mark.usefixtures("several")
def test_a_codec_shortens_what_is_sent(adaptor, hvd, rng, size):
    tensor = adaptor.tensor(rng.random(size * 100_000, dtype=np.float32))
    hvd.reducescatter(tensor, name="short", compression="onebit")
    hvd.barrier()
    before = hvd.counters()["sent_bytes"]
    hvd.reducescatter(tensor, name="short", compression="onebit")
    assert hvd.counters()["sent_bytes"] - before < 400_000 * (size - 1) / 20


def test_rules(adaptor, hvd, size):
    third = full(5000, 1 / 3)
    tensor = adaptor.full(size * 5000, 1 / 3)
    exact = hvd.reducescatter(tensor, name="layer.bias", compression={"*.bias": "none", "*": "fp16"})
    rounded = hvd.reducescatter(tensor, name="layer.weight", compression={"*.bias": "none", "*": "fp16"})
    adaptor.assert_close(exact, third, rtol=1.3e-6, atol=1e-5)
    assert size == 1 or not np.array_equal(adaptor.array(rounded), adaptor.array(exact))
    adaptor.assert_close(rounded, adaptor.array(exact), rtol=1e-3)


@pytest.mark.parametrize("codec", ["dgc(ratio=0.01)", "powersgd(rank=2)"])
def test_codecs_that_it_does_not_carry(adaptor, hvd, codec):
    with pytest.raises(ValueError, match=rf"reducescatter\.refused: codec {codec[:3]}.* a reducescatter does not"):
        hvd.reducescatter(adaptor.ones((100, 100)), name="refused", compression=codec)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_is_refused_at_submit(adaptor, hvd):
    assert "bool" in DTYPES
    with pytest.raises(ValueError, match="rank-zero"):
        hvd.reducescatter(adaptor.ones(()))
    with pytest.raises(ValueError, match="rank-zero"):
        hvd.grouped_reducescatter([adaptor.ones(3), adaptor.ones(())])
    with pytest.raises(ValueError, match="bool"):
        hvd.reducescatter(adaptor.ones(3, "bool"))
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(RuntimeError, match="Sum or Average"):
            hvd.reducescatter(adaptor.ones(3), op=op)
    with pytest.raises(ValueError, match="no tensors"):
        hvd.grouped_reducescatter([])


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(("mine", "text"), [
    (lambda rank: full((17 + (rank == 0), 3), 1), "Mismatched reducescatter tensor shapes"),
    (lambda rank: full((17, 3), 1, "int32" if rank == 0 else "float32"), "Mismatched data types"),
    (lambda rank: full([17, 3] if rank == 0 else [17, 3, 1], 1), "Mismatched reducescatter tensor shapes"),
])  # fmt: skip
def test_ranks_that_disagree(adaptor, hvd, mine, text, rank, size):
    with pytest.raises(hvd.MismatchError, match=text):
        hvd.reducescatter(adaptor.tensor(mine(rank)), name="x")
    adaptor.assert_filled(hvd.reducescatter(adaptor.ones(size), name="x"), 1, 1)


@pytest.mark.usefixtures("several")
def test_ops_and_factors_that_disagree(adaptor, hvd, rank):
    with pytest.raises(hvd.MismatchError, match="Mismatched reduction operation"):
        hvd.reducescatter(adaptor.ones(9), name="x", op=hvd.Sum if rank == 0 else hvd.Average)
    with pytest.raises(hvd.MismatchError, match="prescale"):
        hvd.reducescatter(adaptor.ones(9), name="x", op=hvd.Sum, prescale_factor=1.0 + rank)

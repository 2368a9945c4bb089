"""Means, and the factors before and after a sum: in which precision they are applied, and where it rounds."""

import numpy as np
import pytest

from support.arrays import dtype_of


@pytest.fixture(params=[False, True], ids=["out_of_place", "in_place"])
def allreduce(request, adaptor, hvd):
    if request.param and not adaptor.in_place:
        pytest.skip(f"the values of tensors of {adaptor.name} do not change")
    return hvd.allreduce_ if request.param else hvd.allreduce


def test_prescale_and_postscale(adaptor, hvd, rank, size):
    result = hvd.allreduce(adaptor.full(100, rank + 1), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    adaptor.assert_close(result, np.full(100, 1.5 * sum(range(1, size + 1))), rtol=1e-5, atol=1e-8)
    result = hvd.allreduce(adaptor.full(100, rank + 1, "int64"), op=hvd.Sum, prescale_factor=2.0)
    adaptor.assert_filled(result, 100, 2 * sum(range(1, size + 1)), "int64")


def test_integers_are_scaled_in_double_precision_and_truncated(adaptor, hvd, allreduce, rank, size):
    values = (5, -5, 7, 2**40 + 1)
    own = np.array(values) + 2 * rank
    each = [[int(0.7 * (value + 2 * r)) for value in values] for r in range(size)]
    result = allreduce(adaptor.tensor(own), op=hvd.Sum, prescale_factor=0.7)
    adaptor.assert_equal(result, np.array([sum(of) for of in zip(*each, strict=True)]))
    result = allreduce(adaptor.tensor(own), op=hvd.Sum, postscale_factor=0.7)
    total = [sum(value + 2 * r for r in range(size)) for value in values]
    adaptor.assert_equal(result, np.array([int(0.7 * value) for value in total]))


@pytest.mark.parametrize("numel", [5, 5000])
def test_a_mean_is_the_sum_divided(adaptor, hvd, rank, size, numel):
    """To the last bit, as NumPy divides, not times 1/N."""
    values = np.arange(1, numel + 1, dtype=np.float32)
    result = hvd.allreduce(adaptor.tensor(values * np.float32(rank + 1)))  # the sum has no rounding
    adaptor.assert_equal(result, values * np.float32(size * (size + 1) // 2) / np.float32(size))


def test_double_is_scaled_in_double_precision(adaptor, hvd, rank, size):
    values = np.linspace(-1, 1, 101)
    own = adaptor.tensor(values * (rank + 1))
    result = hvd.allreduce(own, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=1 / 7)
    adaptor.assert_close(result, values * (sum(range(1, size + 1)) / 21), "float64", rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("topology", ["direct", "ps", "ring"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_prescale_comes_before_the_sum_and_rounds_to_the_dtype(adaptor, hvd, rank, size, dtype, topology):
    """So a sum that would overflow does not, and what each rank contributes is what it would have scaled itself."""
    largest = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": float(np.finfo(np.float32).max)}[dtype]
    factor = 0.3 / size
    values = np.full(3000, 0.9 * largest).astype(dtype_of(dtype))  # one sum, in whatever order it is formed
    scaled = (values.astype(np.float32) * np.float32(factor)).astype(dtype_of(dtype))
    result = hvd.allreduce(adaptor.tensor(values), op=hvd.Sum, prescale_factor=factor, topology=topology)
    by_hand = hvd.allreduce(adaptor.tensor(scaled), op=hvd.Sum, topology=topology)
    assert np.isfinite(adaptor.array(result).astype(np.float64)).all()
    adaptor.assert_equal(result, adaptor.array(by_hand))


@pytest.mark.usefixtures("in_place_forms")
def test_scaled_in_place_and_in_groups(adaptor, hvd, rank, size):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = base * np.float32(0.5 * 3.0 * sum(range(1, size + 1)))
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    view = adaptor.turned(base * np.float32(rank + 1))
    assert hvd.allreduce_(view, op=hvd.Sum, **factors) is view
    adaptor.assert_equal(view, expected)
    parts = [adaptor.tensor(base * np.float32(rank + 1)), adaptor.full(2, rank + 1)]
    reduced = hvd.grouped_allreduce_(parts, op=hvd.Sum, **factors)
    adaptor.assert_equal(parts[0], expected)
    adaptor.assert_equal(reduced[0], expected)
    adaptor.assert_filled(parts[1], 2, 1.5 * sum(range(1, size + 1)))


def test_groups_are_scaled_out_of_place_too(adaptor, hvd, rank, size):
    parts = [adaptor.full((4, 6), rank + 1), adaptor.full(2, rank + 1, "int32")]
    results = hvd.grouped_allreduce(parts, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
    adaptor.assert_filled(results[0], (4, 6), 6 * sum(range(1, size + 1)))
    adaptor.assert_filled(results[1], 2, 6 * sum(range(1, size + 1)), "int32")
    adaptor.assert_filled(parts[0], (4, 6), rank + 1)

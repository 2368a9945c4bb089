"""op=Adasum: the algebra it promises, and NumPy's word for the rest."""

import numpy as np
import pytest

from support.arrays import FLOATS, Array, dtype_of, full, normal

# Half a step of the dtype: results are rounded once. What float64 differs by besides is the order of additions in dot
# products.
ROUNDING = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8, "float64": 2**-53}
LENGTHS = [1, 7, 1024, 1025, 70_000]


def tree(vectors: list[Array]) -> Array:
    """Ranks 0 and 1, 2 and 3, then the pairs; who has no partner goes up as it is."""
    if len(vectors) == 1:
        return vectors[0]
    pairs = []
    for a, b in zip(vectors[::2], vectors[1::2], strict=False):
        common = a @ b
        x = 1 - common / (2 * (a @ a)) if a.any() else 1
        y = 1 - common / (2 * (b @ b)) if b.any() else 1
        pairs.append(x * a + y * b)
    return tree(pairs + vectors[len(vectors) & ~1 :])


def expected(arrays: list[Array]) -> Array:
    return tree([array.astype(np.float64).reshape(-1) for array in arrays])


@pytest.fixture
def assert_near(adaptor):
    def check(result, wanted: Array) -> None:
        assert adaptor.is_tensor(result)
        got = adaptor.array(result)
        smallest = 2**-25 if got.dtype == np.float16 else 1e-12
        difference = np.abs(got.astype(np.float64).reshape(-1) - wanted)
        worst = np.max(difference - ROUNDING[got.dtype.name] * 1.001 * np.abs(wanted) - smallest)
        assert worst <= 0, worst

    return check


@pytest.mark.parametrize("topology", ["auto", "direct", "ps"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_the_tree_and_is_the_same_everywhere(adaptor, hvd, assert_near, dtype, topology, rng, rank, size):
    for numel in LENGTHS:
        arrays = normal(rng, numel, dtype, size)
        mine = adaptor.tensor(arrays[rank])
        result = hvd.allreduce(mine, op=hvd.Adasum, name=f"t{numel}", topology=topology)
        adaptor.assert_equal(mine, arrays[rank])  # the input must not change
        assert adaptor.array(result).dtype == dtype_of(dtype)
        assert_near(result, expected(arrays))
        adaptor.assert_same_bits_everywhere(result)


@pytest.mark.parametrize("numel", [100, 50_000])
def test_orthogonal_gradients_add(adaptor, hvd, numel, rank, size):
    whole = np.arange(numel, dtype=np.float32) + np.float32(0.1)
    mine = np.where(np.arange(numel) % size == rank, whole, np.float32(0))
    adaptor.assert_equal(hvd.allreduce(adaptor.tensor(mine), op=hvd.Adasum), whole)


@pytest.mark.parametrize("numel", [100, 50_000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_gradients_average(adaptor, hvd, dtype, numel, rng):
    (each,) = normal(rng, numel, dtype, 1)
    adaptor.assert_equal(hvd.allreduce(adaptor.tensor(each), op=hvd.Adasum), each)


def test_parallel_gradients(adaptor, hvd, rank, size):
    """a and 3a: 1 - 3/2 of a, and 1 - 1/6 of 3a, which is their mean."""
    if size != 2:
        pytest.skip("for two ranks")
    each = np.linspace(-1, 1, 5000, dtype=np.float32)
    result = hvd.allreduce(adaptor.tensor(each * np.float32(1 + 2 * rank)), op=hvd.Adasum)
    adaptor.assert_close(result, 2 * each, rtol=1.3e-6, atol=1e-5)


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**-20, 2.0**40])
def test_scales_as_the_gradients_do(adaptor, hvd, scale, rng, rank, size):
    arrays = normal(rng, 20_000, "float32", size)
    plain = hvd.allreduce(adaptor.tensor(arrays[rank]), op=hvd.Adasum)
    scaled = hvd.allreduce(adaptor.tensor(arrays[rank] * np.float32(scale)), op=hvd.Adasum)
    adaptor.assert_equal(scaled, adaptor.array(plain) * np.float32(scale))


def test_a_rank_without_a_gradient_changes_nothing(adaptor, hvd, assert_near, rng, rank, size):
    arrays = normal(rng, 3000, "float32", size)
    arrays[0][:] = 0
    assert_near(hvd.allreduce(adaptor.tensor(arrays[rank]), op=hvd.Adasum), expected(arrays))
    adaptor.assert_filled(hvd.allreduce(adaptor.full(3000, 0), op=hvd.Adasum), 3000, 0)


def test_prescale_and_postscale(adaptor, hvd, rng, rank, size):
    arrays = normal(rng, 5000, "float32", size)
    mine = adaptor.tensor(arrays[rank])
    result = hvd.allreduce(mine, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0)
    adaptor.assert_close(result, 1.5 * expected(arrays), rtol=1.3e-6, atol=1e-5)


def test_async_and_not_contiguous(adaptor, hvd, assert_near, rng, rank, size):
    arrays = normal(rng, (60, 50), "float32", size)
    mine = hvd.allreduce(adaptor.tensor(arrays[rank]), op=hvd.Adasum)
    assert_near(mine, expected(arrays))
    for tensor in (adaptor.tensor(arrays[rank]), adaptor.turned(arrays[rank])):
        result = hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Adasum))
        adaptor.assert_equal(result, adaptor.array(mine))


@pytest.mark.usefixtures("in_place_forms")
def test_in_place_and_not_contiguous(adaptor, hvd, assert_near, rng, rank, size):
    arrays = normal(rng, (60, 50), "float32", size)
    mine = adaptor.tensor(arrays[rank])
    assert hvd.allreduce_(mine, op=hvd.Adasum) is mine
    assert_near(mine, expected(arrays))
    turned = adaptor.turned(arrays[rank])
    assert hvd.synchronize(hvd.allreduce_async_(turned, op=hvd.Adasum)) is turned
    adaptor.assert_equal(turned, adaptor.array(mine))


def test_a_group_is_reduced_tensor_by_tensor(adaptor, hvd, assert_near, rng, rank, size):
    groups = [normal(rng, numel, "float32", size) for numel in (1, 300, 40_000)]
    mine = [adaptor.tensor(arrays[rank]) for arrays in groups]
    for result, arrays in zip(hvd.grouped_allreduce(mine, op=hvd.Adasum), groups, strict=True):
        assert_near(result, expected(arrays))
    if adaptor.in_place:
        hvd.grouped_allreduce_(mine, op=hvd.Adasum)
        for result, arrays in zip(mine, groups, strict=True):
            assert_near(result, expected(arrays))


@pytest.mark.parametrize("topology", ["direct", "ps"])
@pytest.mark.parametrize("codec", ["fp16", "bf16", "Compression.fp16"])
def test_casts(adaptor, hvd, codec, topology, rng, rank, size):
    arrays = normal(rng, 30_000, "float32", size)
    compression = hvd.Compression.fp16 if codec == "Compression.fp16" else codec
    mine = adaptor.tensor(arrays[rank])
    result = hvd.allreduce(mine, op=hvd.Adasum, compression=compression, topology=topology, name="t")
    adaptor.assert_same_bits_everywhere(result)
    if size > 1:
        assert hvd.plans()["allreduce.t"].codec == str(compression)
    bound = 2**-8 if codec == "bf16" else 2**-10
    adaptor.assert_close(result, expected(arrays), rtol=2 * bound, atol=4 * bound)


def test_large_values_in_fp16(adaptor, hvd):
    """A sum of these overflows in 16 bits; their Adasum does not."""
    result = hvd.allreduce(adaptor.full(5000, 60_000), op=hvd.Adasum, compression="fp16")
    adaptor.assert_filled(result, 5000, 60_000)


def test_one_nan_is_everywhere(adaptor, hvd, rank, size):
    mine = full(5000, 1)
    if rank == size - 1:
        mine[3] = np.nan
    result = adaptor.array(hvd.allreduce(adaptor.tensor(mine), op=hvd.Adasum))
    assert np.isnan(result).all() if size > 1 else np.isnan(result).sum() == 1


def test_many_outstanding_in_another_order_on_each_rank(adaptor, hvd, assert_near, rng, rank, size):
    groups = [normal(rng, 1 + 37 * i, "float32", size) for i in range(60)]
    mine = [adaptor.tensor(arrays[rank]) for arrays in groups]
    order = sorted(range(60), key=lambda i: (i * 37 + rank * 11) % 60)
    handles = {i: hvd.allreduce_async(mine[i], name=f"t{i}", op=hvd.Adasum) for i in order}
    for i in range(60):
        assert_near(hvd.synchronize(handles[i]), expected(groups[i]))


def test_process_sets(adaptor, hvd, assert_near, rng, rank, size):
    if size < 3:
        pytest.skip("needs a set of several ranks that is not all of them")
    members = hvd.ProcessSet(range(1, size))
    hvd.shutdown()
    hvd.init(process_sets=[members], timeout_s=20.0, stall_warning_s=10.0)
    if rank > 0:
        arrays = normal(rng, 5000, "float32", size)
        result = hvd.allreduce(adaptor.tensor(arrays[rank]), op=hvd.Adasum, process_set=members)
        assert_near(result, expected(arrays[1:]))


def test_refusals(adaptor, hvd):
    with pytest.raises(ValueError, match="op Adasum takes float32, float64, float16 and bfloat16, not int32"):
        hvd.allreduce(adaptor.ones(10, "int32"), op=hvd.Adasum)
    with pytest.raises(ValueError, match="onebit: its op is Adasum, which goes with casts alone; use"):
        hvd.allreduce(adaptor.ones(5000), op=hvd.Adasum, compression="onebit")
    for topology in ("ring", "two_level"):
        with pytest.raises(
            ValueError, match=f'which topology {topology} does not carry; use topology "direct" or "ps"'
        ):
            hvd.allreduce(adaptor.ones(5000), op=hvd.Adasum, topology=topology)
    for scatter in (hvd.reducescatter, hvd.reducescatter_async):
        with pytest.raises((RuntimeError, ValueError), match="Sum or Average"):
            scatter(adaptor.ones((10, 10)), op=hvd.Adasum)


@pytest.mark.usefixtures("several")
def test_ranks_that_disagree_on_the_op(adaptor, hvd, rank, size):
    with pytest.raises(hvd.MismatchError, match="(?s)Mismatched reduction operation.*op Adasum"):
        hvd.allreduce(adaptor.ones(100), op=hvd.Adasum if rank == 0 else hvd.Sum, name="t")
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(100), op=hvd.Sum), 100, size)

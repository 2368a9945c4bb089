"""op=Adasum: the algebra it promises, and numpy's word for the rest."""

import casync.torch as hvd
import numpy as np
import pytest
import torch

# Half a step of the dtype: results are rounded once. What float64 differs by besides is the order of additions in dot
# products.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float64: 2**-53}
LENGTHS = [1, 7, 1024, 1025, 70_000]


def tree(vectors: list[np.ndarray]) -> np.ndarray:
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


def draw(rng, numel: int, dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    return [torch.from_numpy(rng.standard_normal(numel)).to(dtype) for _ in range(size)]


def expected(tensors: list[torch.Tensor]) -> np.ndarray:
    return tree([tensor.double().flatten().numpy() for tensor in tensors])


def assert_near(result: torch.Tensor, wanted: np.ndarray) -> None:
    got = result.double().flatten().numpy()
    smallest = 2**-25 if result.dtype == torch.float16 else 1e-12
    worst = np.max(np.abs(got - wanted) - ROUNDING[result.dtype] * 1.001 * np.abs(wanted) - smallest)
    assert worst <= 0, worst


def assert_same_bits(result: torch.Tensor) -> None:
    for other in hvd.allgather(result.reshape(1, -1).view(torch.uint8)):
        assert torch.equal(other, result.flatten().view(torch.uint8))


@pytest.mark.parametrize("topology", ["auto", "direct", "ps"])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_equals_the_tree_and_is_the_same_everywhere(dtype, topology, rng, rank, size):
    for numel in LENGTHS:
        tensors = draw(rng, numel, dtype, size)
        mine = tensors[rank].clone()
        result = hvd.allreduce(mine, op=hvd.Adasum, name=f"t{numel}", topology=topology)
        assert torch.equal(mine, tensors[rank]), "the input must not change"
        assert_near(result, expected(tensors))
        assert_same_bits(result)


@pytest.mark.parametrize("numel", [100, 50_000])
def test_orthogonal_gradients_add(numel, rank, size):
    mine = torch.zeros(numel)
    mine[rank::size] = torch.arange(numel)[rank::size] + 0.1
    assert torch.equal(hvd.allreduce(mine, op=hvd.Adasum), torch.arange(numel) + 0.1)


@pytest.mark.parametrize("numel", [100, 50_000])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_equal_gradients_average(dtype, numel, rng, rank, size):
    each = draw(rng, numel, dtype, 1)[0]
    assert torch.equal(hvd.allreduce(each, op=hvd.Adasum), each)


def test_parallel_gradients(rank, size):
    """a and 3a: 1 - 3/2 of a, and 1 - 1/6 of 3a, which is their mean."""
    if size != 2:
        pytest.skip("for two ranks")
    each = torch.linspace(-1, 1, 5000)
    torch.testing.assert_close(hvd.allreduce(each * (1 + 2 * rank), op=hvd.Adasum), 2 * each)


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**-20, 2.0**40])
def test_scales_as_the_gradients_do(scale, rng, rank, size):
    tensors = draw(rng, 20_000, torch.float32, size)
    plain = hvd.allreduce(tensors[rank], op=hvd.Adasum)
    scaled = hvd.allreduce(tensors[rank] * scale, op=hvd.Adasum)
    assert torch.equal(scaled, plain * scale)


def test_a_rank_without_a_gradient_changes_nothing(rng, rank, size):
    tensors = draw(rng, 3000, torch.float32, size)
    tensors[0].zero_()
    result = hvd.allreduce(tensors[rank], op=hvd.Adasum)
    assert_near(result, expected(tensors))
    assert not hvd.allreduce(torch.zeros(3000), op=hvd.Adasum).any()


def test_prescale_and_postscale(rng, rank, size):
    tensors = draw(rng, 5000, torch.float32, size)
    result = hvd.allreduce(tensors[rank], op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(result, torch.from_numpy(1.5 * expected(tensors)).float())


def test_in_place_and_not_contiguous(rng, rank, size):
    tensors = [tensor.reshape(60, 50) for tensor in draw(rng, 3000, torch.float32, size)]
    mine = tensors[rank].clone()
    assert hvd.allreduce_(mine, op=hvd.Adasum) is mine
    assert_near(mine, expected(tensors))
    turned = tensors[rank].t().contiguous().t()
    handle = hvd.allreduce_async_(turned, op=hvd.Adasum)
    assert hvd.synchronize(handle) is turned and torch.equal(turned, mine)
    assert torch.equal(hvd.synchronize(hvd.allreduce_async(tensors[rank], op=hvd.Adasum)), mine)


def test_a_group_is_reduced_tensor_by_tensor(rng, rank, size):
    groups = [draw(rng, numel, torch.float32, size) for numel in (1, 300, 40_000)]
    mine = [tensors[rank].clone() for tensors in groups]
    for result, tensors in zip(hvd.grouped_allreduce(mine, op=hvd.Adasum), groups, strict=True):
        assert_near(result, expected(tensors))
    hvd.grouped_allreduce_(mine, op=hvd.Adasum)
    for result, tensors in zip(mine, groups, strict=True):
        assert_near(result, expected(tensors))


@pytest.mark.parametrize("topology", ["direct", "ps"])
@pytest.mark.parametrize("codec", ["fp16", "bf16", hvd.Compression.fp16], ids=str)
def test_casts(codec, topology, rng, rank, size):
    tensors = draw(rng, 30_000, torch.float32, size)
    result = hvd.allreduce(tensors[rank], op=hvd.Adasum, compression=codec, topology=topology, name="t")
    assert_same_bits(result)
    if size > 1:
        assert hvd.plans()["allreduce.t"].codec == str(codec)
    bound = 2**-8 if str(codec) == "bf16" else 2**-10
    wanted = torch.from_numpy(expected(tensors)).float()
    torch.testing.assert_close(result, wanted, rtol=2 * bound, atol=4 * bound)


def test_large_values_in_fp16(rank, size):
    """A sum of these overflows in 16 bits; their Adasum does not."""
    result = hvd.allreduce(torch.full((5000,), 60_000.0), op=hvd.Adasum, compression="fp16")
    assert torch.equal(result, torch.full((5000,), 60_000.0))


def test_one_nan_is_everywhere(rank, size):
    mine = torch.ones(5000)
    if rank == size - 1:
        mine[3] = float("nan")
    result = hvd.allreduce(mine, op=hvd.Adasum)
    assert result.isnan().all() if size > 1 else result.isnan().sum() == 1


def test_many_outstanding_in_another_order_on_each_rank(rng, rank, size):
    groups = [draw(rng, 1 + 37 * i, torch.float32, size) for i in range(60)]
    order = sorted(range(60), key=lambda i: (i * 37 + rank * 11) % 60)
    handles = {i: hvd.allreduce_async(groups[i][rank], name=f"t{i}", op=hvd.Adasum) for i in order}
    for i in range(60):
        assert_near(hvd.synchronize(handles[i]), expected(groups[i]))


def test_process_sets(rng, rank, size):
    if size < 3:
        pytest.skip("needs a set of several ranks that is not all of them")
    members = hvd.ProcessSet(range(1, size))
    hvd.shutdown()
    hvd.init(process_sets=[members], timeout_s=20.0, stall_warning_s=10.0)
    if rank > 0:
        tensors = draw(rng, 5000, torch.float32, size)
        result = hvd.allreduce(tensors[rank], op=hvd.Adasum, process_set=members)
        assert_near(result, expected(tensors[1:]))


def test_refusals(rank, size):
    with pytest.raises(ValueError, match="op Adasum takes float32, float64, float16 and bfloat16, not int32"):
        hvd.allreduce(torch.ones(10, dtype=torch.int32), op=hvd.Adasum)
    with pytest.raises(ValueError, match="onebit: its op is Adasum, which goes with casts alone; use"):
        hvd.allreduce(torch.ones(5000), op=hvd.Adasum, compression="onebit")
    for topology in ("ring", "two_level"):
        with pytest.raises(ValueError, match=f'topology {topology} does not bring there; use topology "ps" or "auto"'):
            hvd.allreduce(torch.ones(5000), op=hvd.Adasum, topology=topology)
    for scatter in (hvd.reducescatter, hvd.reducescatter_async):
        with pytest.raises((RuntimeError, ValueError), match="Sum or Average"):
            scatter(torch.ones(10, 10), op=hvd.Adasum)
    with pytest.raises(RuntimeError, match="differentiable for Sum and Average"):
        hvd.allreduce(torch.ones(10, requires_grad=True), op=hvd.Adasum)


def test_ranks_that_disagree_on_the_op(rank, size):
    if size < 2:
        pytest.skip("a world of one agrees")
    with pytest.raises(hvd.MismatchError, match="(?s)Mismatched reduction operation.*op Adasum"):
        hvd.allreduce(torch.ones(100), op=hvd.Adasum if rank == 0 else hvd.Sum, name="t")
    assert hvd.allreduce(torch.ones(100), op=hvd.Sum)[0] == size

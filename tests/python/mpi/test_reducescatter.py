"""reducescatter and grouped_reducescatter: each rank is left with its rows of the sum."""

import casync.torch as hvd
import pytest
import torch

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def own_rows(tensor, rank, size):
    """The first rows % size ranks have one row more."""
    counts = [tensor.shape[0] // size + (r < tensor.shape[0] % size) for r in range(size)]
    begin = sum(counts[:rank])
    return tensor[begin : begin + counts[rank]]


def of_rank(rank, shape, dtype):
    values = torch.arange(torch.Size(shape).numel()).reshape(shape) % 7 + rank
    return values.to(dtype)


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("shape", [(12,), (12, 3), (13, 2, 5), (2, 3), (1, 4), (0, 3), (4, 0)])
def test_sum_and_average(dtype, shape, rank, size):
    tensor = of_rank(rank, shape, dtype)
    total = sum(of_rank(r, shape, torch.float64) for r in range(size))
    result = hvd.reducescatter(tensor, op=hvd.Sum)
    assert result.dtype == dtype and torch.equal(result.double(), own_rows(total, rank, size))
    assert torch.equal(tensor, of_rank(rank, shape, dtype))
    mean = own_rows(total, rank, size) / size
    mean = mean.trunc() if dtype in INTEGERS else mean
    torch.testing.assert_close(hvd.reducescatter(tensor).double(), mean, rtol=0 if dtype in INTEGERS else 1e-2, atol=0)


def test_more_than_one_partition(rank, size):
    """Megabytes, so that every rank's rows travel in several messages."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.rand(1001, 700, generator=generator) for _ in range(size)]
    result = hvd.reducescatter(tensors[rank], op=hvd.Sum, name="large")
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    assert torch.equal(result, own_rows(total, rank, size))


def test_what_is_sent_is_what_others_keep(rank, size):
    """Half of a parameter server: (N-1)/N of the tensor, and neither more nor less comes in."""
    tensor = torch.ones(size * 100_000)
    hvd.barrier()
    before = hvd.counters()["sent_bytes"]
    hvd.reducescatter(tensor, name="counted")
    sent = hvd.counters()["sent_bytes"] - before
    assert 400_000 * (size - 1) <= sent < 400_000 * (size - 1) + 20_000


def test_scale_factors(rank, size):
    tensor = torch.full((2 * size, 3), float(rank + 1))
    total = sum(range(1, size + 1))
    result = hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.equal(result, torch.full((2, 3), total * 1.5))
    result = hvd.reducescatter(tensor, op=hvd.Average, prescale_factor=2.0)
    torch.testing.assert_close(result, torch.full((2, 3), total * 2.0 / size))


def test_scale_factors_of_integers_and_doubles(rank, size):
    values = torch.tensor([[5 + 2 * rank]] * size)
    summed = hvd.reducescatter(values, op=hvd.Sum, prescale_factor=0.7)
    assert summed.tolist() == [[sum(int(0.7 * (5 + 2 * r)) for r in range(size))]]
    (summed,) = hvd.grouped_reducescatter([values.double()], op=hvd.Sum, postscale_factor=1 / 3)
    assert summed.item() == pytest.approx(sum(5 + 2 * r for r in range(size)) / 3, rel=1e-15)


def test_async_and_non_contiguous(rank, size):
    tensors = [torch.full((size, i + 1), float(rank)).t().contiguous().t() for i in range(15)]
    handles = [hvd.reducescatter_async(tensor, op=hvd.Sum) for tensor in tensors]
    for i, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((1, i + 1), float(sum(range(size)))))
        assert hvd.synchronize(handle) is None


def test_grouped(rank, size):
    tensors = [of_rank(rank, (size + i, 2), dtype) for i, dtype in enumerate(FLOATS + INTEGERS)]
    totals = [sum(of_rank(r, tensor.shape, torch.float64) for r in range(size)) for tensor in tensors]
    handle = hvd.grouped_reducescatter_async(tensors, op=hvd.Sum, name="group")
    results = hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    for again in (results, hvd.grouped_reducescatter(tensors, op=hvd.Sum)):
        for tensor, total, result in zip(tensors, totals, again, strict=True):
            assert result.dtype == tensor.dtype and torch.equal(result.double(), own_rows(total, rank, size))


# --- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["fp16", "bf16", "onebit", "terngrad(bits=8)"])
def test_mass_is_conserved(codec, rank, size):
    """Over steps, what arrived is what was given, but for what the residuals still hold."""
    steps, shape = 30, (101, 257)
    given, got = torch.zeros(shape, dtype=torch.float64), 0
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        tensors = [torch.rand(shape, generator=generator) - 0.5 for _ in range(size)]
        given += sum(tensor.double() for tensor in tensors)
        got = got + hvd.reducescatter(tensors[rank], f"mass.{codec}", codec, hvd.Sum).double()
    error = (got - own_rows(given, rank, size)).norm() / own_rows(given, rank, size).norm()
    assert error < (0.5 if codec == "onebit" else 0.05), error


def test_what_a_codec_held_back_waits_for_the_next_that_does(rank, size):
    if size < 2:
        pytest.skip("one rank holds nothing back")
    tensor = torch.rand(size * 3000, 2) - 0.5
    hvd.reducescatter(tensor, "change", "onebit")
    total = hvd.allreduce(tensor, op=hvd.Sum)
    torch.testing.assert_close(hvd.reducescatter(tensor, "change", "none", hvd.Sum), own_rows(total, rank, size))
    assert hvd.reducescatter(torch.zeros_like(tensor), "change", "onebit").abs().sum() > 0


def test_a_codec_shortens_what_is_sent(rank, size):
    if size < 2:
        pytest.skip("one rank sends nothing")
    tensor = torch.rand(size * 100_000)
    hvd.reducescatter(tensor, "short", "onebit")
    hvd.barrier()
    before = hvd.counters()["sent_bytes"]
    hvd.reducescatter(tensor, "short", "onebit")
    assert hvd.counters()["sent_bytes"] - before < 400_000 * (size - 1) / 20


def test_rules(rank, size):
    tensor = torch.full((size * 5000,), 1.0 / 3)
    exact = hvd.reducescatter(tensor, "layer.bias", {"*.bias": "none", "*": "fp16"})
    rounded = hvd.reducescatter(tensor, "layer.weight", {"*.bias": "none", "*": "fp16"})
    torch.testing.assert_close(exact, tensor[:5000])
    assert size == 1 or not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("codec", ["dgc(ratio=0.01)", "powersgd(rank=2)"])
def test_codecs_that_it_does_not_carry(codec):
    with pytest.raises(ValueError, match=rf"reducescatter\.refused: codec {codec[:3]}.* a reducescatter does not"):
        hvd.reducescatter(torch.rand(100, 100), "refused", codec)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_is_refused_at_submit():
    with pytest.raises(ValueError, match="rank-zero"):
        hvd.reducescatter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="rank-zero"):
        hvd.grouped_reducescatter([torch.ones(3), torch.tensor(1.0)])
    with pytest.raises(ValueError, match="bool"):
        hvd.reducescatter(torch.ones(3, dtype=torch.bool))
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(RuntimeError, match="Sum or Average"):
            hvd.reducescatter(torch.ones(3), op=op)
    with pytest.raises(ValueError, match="no tensors"):
        hvd.grouped_reducescatter([])


@pytest.mark.parametrize(("mine", "text"), [
    (lambda rank: torch.ones(17 + (rank == 0), 3), "Mismatched reducescatter tensor shapes"),
    (lambda rank: torch.ones(17, 3, dtype=torch.int32 if rank == 0 else torch.float32), "Mismatched data types"),
    (lambda rank: torch.ones([17, 3] if rank == 0 else [17, 3, 1]), "Mismatched reducescatter tensor shapes"),
])  # fmt: skip
def test_ranks_that_disagree(mine, text, rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(hvd.MismatchError, match=text):
        hvd.reducescatter(mine(rank), name="x")
    assert torch.equal(hvd.reducescatter(torch.ones(size), name="x"), torch.ones(1))


def test_ops_and_factors_that_disagree(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(hvd.MismatchError, match="Mismatched reduction operation"):
        hvd.reducescatter(torch.ones(9), "x", op=hvd.Sum if rank == 0 else hvd.Average)
    with pytest.raises(hvd.MismatchError, match="prescale"):
        hvd.reducescatter(torch.ones(9), "x", op=hvd.Sum, prescale_factor=1.0 + rank)


# --- autograd ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "factor"), [(hvd.Sum, None), (hvd.Average, 1)])
def test_gradient(op, factor, rank, size):
    """Horovod's convention: of a sum the gathered gradient times the number of ranks."""
    factor = size if factor is None else factor
    for rows in (4 * size, 4 * size + 1):
        tensor = torch.rand(rows, 3, requires_grad=True)
        result = hvd.reducescatter(tensor, op=op)
        result.backward(torch.full_like(result, rank + 1.0))
        expected = torch.cat([torch.full((rows // size + (r < rows % size), 3), r + 1.0) for r in range(size)])
        assert torch.equal(tensor.grad, expected * factor)


def test_gradient_with_factors(size):
    tensor = torch.rand(size, requires_grad=True)
    hvd.reducescatter(tensor, op=hvd.Average, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    assert torch.equal(tensor.grad, torch.full((size,), 1.5))


def test_gradient_of_a_group(rank, size):
    tensors = [torch.rand(size * n, requires_grad=True) for n in (1, 2)]
    sum(result.sum() for result in hvd.grouped_reducescatter(tensors, op=hvd.Sum)).backward()
    assert all(torch.equal(tensor.grad, torch.full_like(tensor, size)) for tensor in tensors)

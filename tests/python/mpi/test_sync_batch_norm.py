"""SyncBatchNorm against torch's batch normalisation of all ranks' inputs in one batch."""

import casync.torch as hvd
import pytest
import torch

FEATURES = 5


def batches(size: int, extents: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """One batch per rank, of unequal sizes, far from zero; the same on all ranks."""
    torch.manual_seed(3)
    return [(torch.randn(2 + 3 * r, FEATURES, *extents, dtype=torch.float64) * 0.5 + 20).to(dtype) for r in range(size)]


@pytest.mark.parametrize("extents", [(), (7,), (3, 4), (2, 3, 2)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_it_is_batch_norm_of_all_batches(rank, size, extents, momentum):
    parts = batches(size, extents, torch.float32)
    mine = parts[rank].clone().requires_grad_()
    layer = hvd.SyncBatchNorm(FEATURES, momentum=momentum)
    reference = torch.nn.modules.batchnorm._BatchNorm.forward
    whole = hvd.SyncBatchNorm(FEATURES, momentum=momentum).double()
    together = torch.cat(parts).double().requires_grad_()
    with torch.no_grad():
        for module in (layer, whole):
            module.weight.copy_(torch.linspace(0.5, 2, FEATURES))
            module.bias.copy_(torch.linspace(-1, 1, FEATURES))
    for _ in range(2):
        got, expected = layer(mine), reference(whole, together)
    factors = torch.linspace(-1, 1, together.numel(), dtype=torch.float64).view_as(together)
    rows = [len(part) for part in parts]
    (got * factors.split(rows)[rank]).sum().backward()
    (expected * factors).sum().backward()
    assert torch.allclose(got.double(), expected.split(rows)[rank], atol=2e-4)
    assert torch.allclose(mine.grad.double(), together.grad.split(rows)[rank], atol=2e-4)
    assert torch.allclose(layer.running_mean.double(), whole.running_mean, rtol=1e-5)
    assert torch.allclose(layer.running_var.double(), whole.running_var, rtol=1e-4)
    assert int(layer.num_batches_tracked) == 2
    # Gradients of weight and bias are this rank's share: the optimizer reduces them, as every parameter's.
    assert torch.allclose(hvd.allreduce(layer.weight.grad, op=hvd.Sum).double(), whole.weight.grad, atol=2e-3)
    assert torch.allclose(hvd.allreduce(layer.bias.grad, op=hvd.Sum).double(), whole.bias.grad, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(rank, size, dtype):
    parts = batches(size, (6,), dtype)
    layer = hvd.SyncBatchNorm(FEATURES, affine=False)
    if dtype == torch.float64:
        layer.double()
    got = layer(parts[rank])
    together = torch.cat([part.double() for part in parts])
    expected = torch.nn.functional.batch_norm(together, None, None, training=True)
    assert got.dtype == dtype
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-9}[dtype]
    assert torch.allclose(got.double(), expected.split([len(part) for part in parts])[rank], atol=tolerance)


def test_an_empty_batch_takes_part(rank, size):
    torch.manual_seed(1)
    everything = torch.randn(4 * size, FEATURES)
    mine = everything[:0] if rank == 0 and size > 1 else everything[4 * rank : 4 * rank + 4]
    others = everything if size == 1 else everything[4:]
    got = hvd.SyncBatchNorm(FEATURES)(mine)
    assert got.shape == mine.shape
    if len(mine):
        expected = torch.nn.functional.batch_norm(others, None, None, training=True)
        begin = 4 * rank - (4 if size > 1 else 0)
        assert torch.allclose(got, expected[begin : begin + 4], atol=1e-5)


def test_an_empty_batch_takes_part_in_backward(rank, size):
    """Its rank has no gradient of its own, and the others wait for it."""
    mine = torch.randn(0 if rank == 0 and size > 1 else 4, FEATURES, requires_grad=True)
    hvd.SyncBatchNorm(FEATURES)(mine).square().sum().backward()
    assert mine.grad.shape == mine.shape


def test_evaluation_meets_nobody(rank):
    layer = hvd.SyncBatchNorm(FEATURES)
    layer.eval()
    if rank == 0:
        assert torch.allclose(layer(torch.ones(3, FEATURES)), torch.ones(3, FEATURES), atol=1e-4)


def test_wrong_shapes_are_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match=r"\(batch, 5, ...\)"):
        hvd.SyncBatchNorm(FEATURES)(torch.ones(3, 4))

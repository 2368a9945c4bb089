"""DistributedOptimizer(op=Adasum) against one plain optimizer per rank, whose steps are reduced here."""

import copy
import functools

import casync.torch as hvd
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import replicas, training
from support.replicas import assert_replicas_identical, assert_same_bits, assert_same_everywhere
from support.training import make_model, step

wrap = functools.partial(training.wrap, op=hvd.Adasum)
assert_same = functools.partial(replicas.assert_same, rtol=1e-3, atol=1e-5)
MAKERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.003),
    "two groups": lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.2}, {"params": p[2:]}], lr=0.05),
}


def make_data(size: int, steps: int = 4) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Per step and rank a batch."""
    generator = torch.Generator().manual_seed(1)
    return [
        [(torch.randn(8, 20, generator=generator), torch.randint(0, 4, (8,), generator=generator)) for _ in range(size)]
        for _ in range(steps)
    ]


def adasum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not a.any() or not b.any():
        return a + b
    return (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b


def tree(vectors: list[np.ndarray]) -> np.ndarray:
    while len(vectors) > 1:
        pairs = [adasum(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + vectors[len(vectors) & ~1 :]
    return vectors[0]


class Reference:
    """One model and one plain optimizer per rank; the models are the same after every step."""

    def __init__(self, make, size):
        self.models = [make_model() for _ in range(size)]
        self.optimizers = [make(list(model.parameters())) for model in self.models]

    def step(self, batches):
        start = [p.detach().double().numpy().copy() for p in self.models[0].parameters()]
        for model, optimizer, batch in zip(self.models, self.optimizers, batches, strict=True):
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()
        for i, before in enumerate(start):
            changed = [list(model.parameters())[i].detach().double().numpy() - before for model in self.models]
            after = torch.from_numpy(before + tree([c.ravel() for c in changed]).reshape(before.shape))
            for model in self.models:
                list(model.parameters())[i].data.copy_(after)


def backward(model, batch):
    F.cross_entropy(model(batch[0]), batch[1]).backward()


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_equals_the_adasum_of_plain_steps(make, groups, rank, size):
    model, reference = make_model(), Reference(make, size)
    plain = make(list(model.parameters()))
    optimizer = wrap(model, plain, groups=groups)
    assert isinstance(optimizer, type(plain)) and type(optimizer).__name__ == type(plain).__name__
    for batches in make_data(size):
        step(model, optimizer, batches[rank])
        reference.step(batches)
    assert_same(model, reference.models[0])
    assert_replicas_identical(model)


@pytest.mark.parametrize("codec", ["fp16", "bf16", hvd.Compression.fp16], ids=str)
def test_casts_learn_and_keep_replicas_identical(codec, rank, size):
    model = make_model(seed=rank)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), compression=codec)
    batch = make_data(size, 1)[0][rank]
    first = F.cross_entropy(model(batch[0]), batch[1]).item()
    for _ in range(20):
        step(model, optimizer, batch)
    assert_replicas_identical(model)
    assert F.cross_entropy(model(batch[0]), batch[1]).item() < first


def test_parameters_are_as_before_until_the_step(rank, size):
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = wrap(model)
    backward(model, make_data(size)[0][rank])
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    optimizer.step()
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_backward_passes_accumulate_locally(rank, size):
    model, other = make_model(), make_model()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), backward_passes_per_step=2)
    once = wrap(other, torch.optim.SGD(other.parameters(), lr=0.05))
    for batches in make_data(size):
        x, y = batches[rank]
        optimizer.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            (F.cross_entropy(model(x[half]), y[half]) / 2).backward()
        optimizer.step()
        step(other, once, batches[rank])
    assert_same(model, other)
    optimizer.zero_grad()
    backward(model, make_data(size)[0][rank])
    optimizer.step()  # before the second pass
    assert_replicas_identical(model)


def test_a_parameter_without_a_gradient_takes_the_others_step(rank, size):
    if size < 2:
        pytest.skip("for several ranks")
    parameters = nn.ParameterList([nn.Parameter(torch.zeros(5000)) for _ in range(2)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Adasum)
    used = parameters[1] if rank == 0 else parameters[0] if rank == 1 else None
    if used is not None:
        (used * (rank + 2.0)).sum().backward()
    optimizer.step()
    assert torch.equal(parameters[0].detach(), torch.full((5000,), -3.0))
    assert torch.equal(parameters[1].detach(), torch.full((5000,), -2.0))


def test_a_closure(rank, size):
    model, other = make_model(), make_model()
    optimizer, plain = wrap(model), wrap(other)
    for batches in make_data(size):

        def closure(batch=batches[rank]):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
        step(other, plain, batches[rank])
    assert_same_bits(model, other)


def test_a_schedule_and_a_checkpoint(rank, size):
    model, other = make_model(), make_model()
    optimizer, resumed = wrap(model), wrap(other)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for batches in make_data(size):
        step(model, optimizer, batches[rank])
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 / 16
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for batches in make_data(size):
        step(model, optimizer, batches[rank])
        step(other, resumed, batches[rank])
    assert_same_bits(model, other)


def test_not_contiguous_and_16_bit_parameters(rank, size):
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    half = nn.Linear(30, 40).bfloat16()
    parameters = [*convolution.parameters(), *half.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), op=hvd.Adasum)
    before = [p.detach().clone() for p in parameters]
    convolution(torch.full((1, 3, 5, 5), rank + 1.0)).sum().backward()
    half(torch.full((1, 30), rank + 1.0).bfloat16()).sum().backward()
    optimizer.step()
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    for parameter, old in zip(parameters, before, strict=True):
        assert_same_everywhere(parameter.detach().reshape(1, -1).view(torch.uint8))
        assert not torch.equal(parameter, old)


def test_what_horovod_refuses(rank, size):
    model = make_model()
    optimizer = wrap(model)
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported with op != Average"):
        wrap(model, gradient_predivide_factor=2.0)
    if size < 2:
        return  # is a plain optimizer
    backward(model, make_data(size)[0][rank])
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.synchronize()
    with (
        pytest.raises(AssertionError, match="Skipping synchronization is not supported when using Adasum optimizer"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step()
    optimizer.step()
    assert_replicas_identical(model)


@pytest.mark.interplay(
    "gradient clipping", "DistributedOptimizer", "refused", "with `op=Adasum`, after backward: use `register_hook()`"
)
def test_clipping_too_late_is_an_error(rank, size):
    if size < 2:
        pytest.skip("is a plain optimizer")
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = wrap(model)
    batches = make_data(size)
    backward(model, batches[0][rank])
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with pytest.raises(ValueError, match="gradient of 0.weight was changed after backward had made this rank's step"):
        optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    step(model, optimizer, batches[1][rank])
    assert_replicas_identical(model)


def test_sparse_gradients_make_dense_steps(rank, size):
    table = nn.Embedding(100, 60, sparse=True)
    nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), op=hvd.Adasum)
    table(torch.tensor([rank, rank + 50])).sum().backward()
    optimizer.step()
    expected = torch.zeros(100, 60)
    for r in range(size):
        expected[[r, r + 50]] = -1
    assert torch.equal(table.weight.detach(), expected)


@pytest.mark.interplay("GradScaler", "DistributedOptimizer", "refused", "with `op=Adasum`")
def test_a_scaler_is_refused_before_anything_moves(rank, size):
    if size < 2:
        pytest.skip("is a plain optimizer")
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer, scaler = wrap(model), torch.amp.GradScaler("cpu")
    batch = make_data(size)[0][rank]
    scaler.scale(F.cross_entropy(model(batch[0]), batch[1])).backward()
    with pytest.raises(hvd.NotAvailableError, match="a GradScaler with op=Adasum"):
        scaler.step(optimizer)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_a_codec_that_is_no_cast_is_refused_at_once(rank, size):
    if size < 2:
        pytest.skip("a world of one compresses nothing")
    with pytest.raises(ValueError, match=r"0.weight cannot be compressed with onebit: its op is Adasum"):
        wrap(make_model(), compression="onebit")
    wrap(make_model(), compression="fp16")


@pytest.mark.interplay("LBFGS and other closures", "DistributedOptimizer", "refused", "LBFGS with `op=Adasum`")
def test_an_optimizer_that_needs_closures_is_refused_at_once(rank, size):
    if size < 2:
        pytest.skip("is a plain optimizer")
    model = make_model()
    with pytest.raises(hvd.NotAvailableError, match="LBFGS with op=Adasum"):
        wrap(model, torch.optim.LBFGS(model.parameters()))


def test_a_process_set(rank, size):
    if size < 3:
        pytest.skip("needs a set of several ranks that is not all of them")
    members = hvd.ProcessSet(range(1, size))
    hvd.shutdown()
    hvd.init(process_sets=[members], timeout_s=20.0, stall_warning_s=10.0)
    parameter = nn.Parameter(torch.zeros(5000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Adasum, process_set=members)
    parameter.sum().backward()
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.full((5000,), -1.0))

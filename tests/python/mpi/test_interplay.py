"""What training scripts combine with `DistributedOptimizer` and with the hook of DDP, where no other file tests it.

docs/interplay.md is made of the marks of these tests, and of others' (tools/interplay.py).
"""

import copy
import functools

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from support import training
from support.replicas import assert_replicas_identical, assert_same
from support.training import batch_of, make_model, step

wrap = functools.partial(training.wrap, lr=0.05)


def with_hook(model, compression="none", **arguments):
    ddp = DistributedDataParallel(model, **{"bucket_cap_mb": 0.02, **arguments})
    ddp.register_comm_hook(hvd.ddp_state(compression, model.named_parameters()), hvd.ddp_hook)
    return ddp


def plain_step(model, optimizer, number, size):
    """One process that sees the batches of all ranks."""
    optimizer.zero_grad()
    for rank in range(size):
        x, y = batch_of(number, rank)
        (F.cross_entropy(model(x), y) / size).backward()
    optimizer.step()


# --- torch.compile --------------------------------------------------------------------------------------------


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.interplay(
    "torch.compile",
    "DistributedOptimizer",
    "supported",
    "a compiled backward has its gradients at its end: nothing overlaps with it",
)
@pytest.mark.parametrize("backward_too", [False, True])
def test_a_compiled_model(backward_too, rank, size, dynamo):
    """`backward_too`: by torch's compiled autograd, which runs hooks as well."""
    model, plain = make_model(), make_model()
    optimizer, reference = wrap(model), torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    compiled = torch.compile(model, backend="aot_eager")

    def backward(x, y):
        F.cross_entropy(compiled(x), y).backward()

    with torch._dynamo.config.patch(compiled_autograd=backward_too):
        run = torch.compile(backward, backend="aot_eager") if backward_too else backward
        for number in range(3):
            optimizer.zero_grad()
            run(*batch_of(number, rank))
            optimizer.step()
            plain_step(plain, reference, number, size)
    assert_same(model, plain)
    assert_replicas_identical(model)


@pytest.mark.interplay("torch.compile", "DDP hook", "supported")
def test_a_compiled_model_under_ddp(rank, size, gloo, dynamo):
    model, plain = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    compiled = torch.compile(with_hook(model, bucket_cap_mb=25), backend="aot_eager")
    for number in range(3):
        step(compiled, optimizer, batch_of(number, rank))
        plain_step(plain, reference, number, size)
    assert_same(model, plain)
    assert_replicas_identical(model)


# --- several optimizers ---------------------------------------------------------------------------------------


@pytest.mark.interplay(
    "several optimizers or models", "DistributedOptimizer", "supported", "with names of their own if they compress"
)
@pytest.mark.parametrize("codec", ["none", "always(onebit)"])
def test_two_optimizers_with_one_backward(codec, rank, size):
    """Two halves of a model, stepped by two optimizers, are the whole model stepped by one."""
    halves, whole = make_model(), make_model()
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(part.parameters(), lr=0.05), part.named_parameters(prefix), codec, topology="direct"
        )
        for prefix, part in (("low", halves[:2]), ("high", halves[2:]))
    ]
    for number in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = batch_of(number, rank)
        F.cross_entropy(halves(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    reference = wrap(whole, torch.optim.SGD(whole.parameters(), lr=0.05), compression=codec, topology="direct")
    for number in range(3):
        step(whole, reference, batch_of(number, rank))
    assert_same(halves, whole, rtol=0, atol=0)


@pytest.mark.interplay(
    "several optimizers or models",
    "DistributedOptimizer",
    "supported",
    "also under the same names, uncompressed and with casts",
)
@pytest.mark.parametrize("codec", ["none", "fp16", "always(bf16)"])
def test_two_optimizers_that_share_names_and_keep_nothing(codec, rank):
    models = [make_model() for _ in range(3)]
    optimizers = [wrap(model, compression=codec) for model in models[:2]]
    for number in range(3):
        for model, optimizer in zip(models, optimizers, strict=False):
            step(model, optimizer, batch_of(number, rank))
    last = wrap(models[2], compression=codec)
    for number in range(3):
        step(models[2], last, batch_of(number, rank))
    assert_same(models[0], models[1], rtol=0, atol=0)
    assert_same(models[0], models[2], rtol=0, atol=0)


@pytest.mark.interplay(
    "several optimizers or models",
    "DistributedOptimizer",
    "refused",
    "two with a codec that keeps something and the same names: they would share residuals",
)
def test_two_optimizers_that_share_names(rank, size):
    if size < 2:
        pytest.skip("a world of one keeps no residuals")
    first, second = make_model(), make_model()
    early, _ = wrap(first, compression="onebit"), wrap(second, compression="onebit")
    F.cross_entropy(first(batch_of(0, rank)[0]), batch_of(0, rank)[1]).backward()
    with pytest.raises(ValueError, match="belongs to a DistributedOptimizer that was made later.*different names"):
        early.step()


# --- parameters without a gradient, frozen, shared ------------------------------------------------------------


class Branches(nn.Module):
    """Rank 0 goes one way, the others another."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(20, 4), nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.left if hvd.rank() == 0 else self.right)(x)


@pytest.mark.interplay(
    "parameters without a gradient on some ranks",
    "DDP hook",
    "supported",
    "with `find_unused_parameters=True`",
)
def test_ddp_and_parameters_that_some_ranks_use(rank, size, gloo):
    torch.manual_seed(0)
    model = Branches()
    nn.init.zeros_(model.left.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ddp = with_hook(model, find_unused_parameters=True)
    for _ in range(2):
        optimizer.zero_grad()
        ddp(torch.ones(1, 20)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(model.left.bias, torch.full((4,), -2.0 / size))
    assert_replicas_identical(model)


@pytest.mark.interplay("frozen parameters", "DDP hook", "supported", "those that are frozen when DDP is made")
def test_ddp_and_frozen_parameters(rank, size, gloo):
    model = make_model()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model)
    ddp = with_hook(model, "always(onebit)")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for number in range(3):
        step(ddp, optimizer, batch_of(number, rank))
    assert torch.equal(model[0].weight, before[0].weight) and not torch.equal(model[2].weight, before[2].weight)
    assert_replicas_identical(model)


class Tied(nn.Module):
    """A decoder that is its encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.again, self.head = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 4)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.first(x).relu()).relu())


@pytest.mark.interplay("shared parameters", "DistributedOptimizer", "supported")
@pytest.mark.parametrize("codec", ["none", "always(onebit)"])
def test_tied_weights_are_submitted_once(codec, rank, size):
    model, plain = Tied(), Tied()
    optimizer, reference = wrap(model, compression=codec), torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for number in range(3):
        step(model, optimizer, batch_of(number, rank))
        plain_step(plain, reference, number, size)
    assert model.again.weight is model.first.weight
    assert_replicas_identical(model)
    if codec == "none":
        assert_same(model, plain)


@pytest.mark.interplay("shared parameters", "DDP hook", "supported")
def test_tied_weights_under_ddp(rank, size, gloo):
    model, plain = Tied(), Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    ddp = with_hook(model)
    for number in range(3):
        step(ddp, optimizer, batch_of(number, rank))
        plain_step(plain, reference, number, size)
    assert_same(model, plain)
    assert_replicas_identical(model)


# --- hooks that do not fire -----------------------------------------------------------------------------------


@pytest.mark.interplay(
    "a hook that never fired", "DistributedOptimizer", "supported", "`step()` submits what `.grad` holds, or zeros"
)
def test_gradients_that_no_backward_has_put_there(rank, size):
    """torch.autograd.grad runs no hooks; nor does a loss of this rank that is left out."""
    model, plain = make_model(), make_model()
    optimizer, reference = wrap(model), torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for number in range(3):
        optimizer.zero_grad()
        x, y = batch_of(number, rank)
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        plain_step(plain, reference, number, size)
    assert_same(model, plain)
    optimizer.zero_grad()
    if rank > 0:
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert_replicas_identical(model)


@pytest.mark.interplay("a hook that never fired", "DDP hook", "refused", "by DDP, in the next forward")
def test_a_bucket_that_ddp_never_fills(rank, size, gloo):
    model = Branches()
    ddp = with_hook(model)
    ddp(torch.ones(1, 20)).sum().backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
        ddp(torch.ones(1, 20))


# --- gradients that change under way --------------------------------------------------------------------------


@pytest.mark.interplay(
    "gradients that a script changes too early",
    "DistributedOptimizer",
    "refused",
    "clipping or replacing before `synchronize()` would race with the network",
)
@pytest.mark.parametrize("how", ["clipped", "replaced"])
@pytest.mark.parametrize("in_place", [True, False], ids=["contiguous", "channels_last"])
def test_gradients_that_are_changed_under_way_are_refused(how, in_place, rank, size):
    """Clipping before synchronize() races with the network."""
    model = nn.Conv2d(3, 8, 3) if in_place else nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    optimizer = wrap(model)
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    if how == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    else:
        model.weight.grad = model.weight.grad * 2
    if size < 2:
        optimizer.step()
        return
    with pytest.raises(ValueError, match=r"the gradient of weight was changed after backward.*skip_synchronize"):
        optimizer.step()
    optimizer.zero_grad()
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    optimizer.step()


# --- closures -------------------------------------------------------------------------------------------------


@pytest.mark.interplay(
    "LBFGS and other closures", "DDP hook", "supported", "if the closure returns the mean of the losses"
)
def test_lbfgs_under_ddp(rank, size, gloo):
    model, plain = make_model(), make_model()
    ddp = with_hook(model)

    def closure():
        optimizer.zero_grad()
        x, y = batch_of(0, rank)
        loss = F.cross_entropy(ddp(x), y)
        loss.backward()
        return hvd.allreduce(loss.detach())

    def plain_closure():
        reference.zero_grad()
        losses = [F.cross_entropy(plain(x), y) for x, y in (batch_of(0, r) for r in range(size))]
        loss = sum(losses) / size
        loss.backward()
        return loss

    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    reference = torch.optim.LBFGS(plain.parameters(), max_iter=3)
    optimizer.step(closure)
    reference.step(plain_closure)
    assert_same(model, plain, rtol=1e-2, atol=1e-3)
    assert_replicas_identical(model)

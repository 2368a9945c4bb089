"""LocalSGD in programs as users write them, beside all ranks in one process, or PyTorch alone."""

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from casync.errors import InvalidArgumentError, MismatchError
from support.local_steps import adam, average, sgd, simulated, train
from support.replicas import assert_replicas_identical, assert_same, assert_same_everywhere
from support.training import batch_of, make_model, step

CODECS = ["none", "onebit"]


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 4))


# --- models and optimizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer_of", [
    sgd, adam, lambda model: torch.optim.Adam(model.parameters(), lr=0.01, foreach=True),
    lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
])  # fmt: skip
def test_as_simulated(rank, size, optimizer_of):
    model = make_model(seed=rank)  # the lowest rank's is everybody's
    optimizer = optimizer_of(model)
    with hvd.LocalSGD(model, optimizer, sync_every=3):
        train(model, optimizer, rank, range(6))
    assert_same(model, simulated(size, 6, 3, optimizer_of=optimizer_of)[rank])
    assert_replicas_identical(model)


def test_clipping_and_a_schedule_are_each_ranks_own(rank, size):
    schedulers = {}

    def local_step(model, optimizer, number_of_rank, number):
        optimizer.zero_grad()
        inputs, labels = batch_of(number, number_of_rank)
        F.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedulers[model].step()

    def optimizer_of(model):
        optimizer = sgd(model)
        schedulers[model] = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return optimizer

    model = make_model()
    optimizer = optimizer_of(model)
    with hvd.LocalSGD(model, optimizer, sync_every=3):
        for number in range(6):
            local_step(model, optimizer, rank, number)
    assert_same(model, simulated(size, 6, 3, optimizer_of=optimizer_of, local_step=local_step)[rank])


class Odd(nn.Module):
    """Parameters of every kind."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(20, 20)
        self.tied = nn.Linear(20, 20)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(20, 4)
        self.nothing = nn.Parameter(torch.zeros(0))
        self.single = nn.Parameter(torch.tensor(1.0))
        self.complex = nn.Parameter(torch.complex(torch.ones(4), torch.ones(4)))
        self.wide = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.image = nn.Conv2d(1, 2, 2).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(3, 4).t())
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, inputs):
        hidden = self.tied(self.first(inputs).relu())
        added = self.nothing.sum() + self.image(inputs.view(-1, 1, 4, 5)).sum() + self.transposed.sum(1)
        return (self.last(hidden) * self.single * self.complex.abs() * self.wide).float() + added


@pytest.mark.parametrize("codec", CODECS)
def test_parameters_of_every_kind(rank, size, codec):
    model = Odd()
    optimizer = adam(model)
    with hvd.LocalSGD(model, optimizer, sync_every=3, compression=codec, min_numel=0):
        train(model, optimizer, rank, range(6))
    for name, parameter in model.named_parameters():
        assert_same_everywhere(torch.view_as_real(parameter) if parameter.is_complex() else parameter, name)
    assert model.tied.weight is model.first.weight
    assert model.image.weight.is_contiguous(memory_format=torch.channels_last)
    if codec == "none":
        others = [Odd() for _ in range(size)]
        for number, other in enumerate(others):
            train(other, adam(other), number, range(3))
        expected = torch.stack([other.complex.detach() for other in others]).mean(0)
        once = Odd()
        optimizer = adam(once)
        with hvd.LocalSGD(once, optimizer, sync_every=3):
            train(once, optimizer, rank, range(3))
        torch.testing.assert_close(once.complex.detach(), expected)


def test_sparse_gradients_and_two_optimizers(rank):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Embedding(50, 20, sparse=True), nn.Linear(20, 4)])
    sparse = torch.optim.SparseAdam(model[0].parameters(), lr=0.01)
    dense = adam(model[1])
    with hvd.LocalSGD(model, [sparse, dense], sync_every=3) as local:
        for number in range(6):
            inputs, labels = batch_of(number, rank)
            F.cross_entropy(model[1](model[0](inputs.abs().mul(10).long() % 50).mean(1)), labels).backward()
            for optimizer in (sparse, dense):
                optimizer.step()
                optimizer.zero_grad()
    assert local.rounds.step_count == 6
    assert_replicas_identical(model)


def test_a_closure_is_one_step(rank):
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    with hvd.LocalSGD(model, optimizer, sync_every=2) as local:
        for number in range(4):

            def closure(number=number):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch_of(number, rank)[0]), batch_of(number, rank)[1])
                loss.backward()
                return loss

            optimizer.step(closure)
    assert local.rounds.step_count == 4
    assert_replicas_identical(model)


def test_a_step_that_the_scaler_skips_does_not_count(rank, size):
    model = make_model()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=16.0)
    with hvd.LocalSGD(model, optimizer, sync_every=3) as local:
        for number in range(7):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(batch_of(number, rank)[0]), batch_of(number, rank)[1])
            scaler.scale(loss * (float("inf") if number == 1 and rank == size - 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert local.rounds.step_count == (6 if rank == size - 1 else 7)
    assert_replicas_identical(model)


def test_compiled_models_have_the_names_of_others(rank, size):
    model = make_model()
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    with hvd.LocalSGD(compiled, optimizer, sync_every=3) as local:
        train(compiled, optimizer, rank, range(3))
    assert list(local.rounds.anchors) == [name for name, _ in model.named_parameters()]
    assert_same(model, simulated(size, 3, 3)[rank])


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batch_norm(rank, size, buffers):
    model = with_batch_norm()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=3, buffers=buffers):
        train(model, optimizer, rank, range(6 + rank))
    assert model[1].num_batches_tracked == 6 + (rank if buffers == "local" else size - 1)
    rows = hvd.allgather(model[1].running_mean.reshape(1, -1))
    assert torch.equal(rows[0], rows[-1]) == (buffers == "average" or size == 1)


class Replaces(nn.Module):
    """A buffer that is another tensor after each step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(20, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs):
        outputs = self.layer(inputs)
        self.mean = 0.5 * self.mean + 0.5 * outputs.detach().mean(0)
        return outputs


def test_a_buffer_that_the_module_replaces_is_averaged(rank, size):
    model, alone = Replaces(), Replaces()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=2):
        train(model, optimizer, rank, range(2))
    train(alone, sgd(alone), rank, range(2))
    torch.testing.assert_close(model.mean, hvd.allreduce(alone.mean, name="mean"))


def test_frozen_parameters_begin_alike(rank):
    model = make_model(seed=rank)
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with hvd.LocalSGD(model, optimizer, sync_every=3):
        train(model, optimizer, rank, range(3))
    assert torch.equal(model[0].weight, make_model()[0].weight)
    assert_replicas_identical(model)


class Masked(nn.Module):
    """A mask and frozen complex numbers that each rank has drawn for itself."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(20, 4)
        self.waves = nn.Parameter(torch.randn(4, dtype=torch.complex64), requires_grad=False)
        self.register_buffer("mask", torch.rand(20) < 0.5)

    def forward(self, inputs):
        return self.layer(inputs * self.mask) * self.waves.abs()


def test_masks_and_frozen_complex_numbers_begin_alike(rank):
    model = Masked(seed=rank)
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=3):
        train(model, optimizer, rank, range(3))
    assert torch.equal(model.mask, Masked(seed=0).mask)
    assert torch.equal(model.waves, Masked(seed=0).waves)
    assert_replicas_identical(model.layer)


def test_samples_are_weights(rank, size):
    seen = 0

    def samples():
        nonlocal seen
        taken, seen = seen, 0
        return taken

    def rows(number, of):
        inputs, labels = batch_of(number, of)
        return inputs[: of + 2], labels[: of + 2]

    model, models = make_model(), [make_model() for _ in range(size)]
    optimizer, optimizers = sgd(model), [sgd(each) for each in models]
    with hvd.LocalSGD(model, optimizer, sync_every=2, weight=samples):
        for number in range(4):
            step(model, optimizer, rows(number, rank))
            seen += rank + 2
            for of in range(size):
                step(models[of], optimizers[of], rows(number, of))
            if number % 2:
                average(models, [of + 2.0 for of in range(size)])
    assert_same(model, models[rank])


# --- what changes in the middle ---------------------------------------------------------------------------------------


def unfreeze(model, optimizer):
    model[0].weight.requires_grad_(True)


def replace_parameter(model, optimizer):
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    optimizer.param_groups[0]["params"] = list(model.parameters())


def add_group(model, optimizer):
    optimizer.add_param_group({"params": list(nn.Linear(3, 3).parameters())})


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize(("change", "text"), [
    (unfreeze, "parameter 0.weight requires a gradient, and did not before"),
    (replace_parameter, "parameter 2.weight was replaced"), (add_group, "holds 2 parameters that are in no fragment"),
])  # fmt: skip
def test_what_would_not_be_averaged_is_refused_on_all_ranks(rank, size, change, text, delay):
    model = make_model()
    model[0].weight.requires_grad_(False)
    optimizer = sgd(model)
    with pytest.raises((InvalidArgumentError, MismatchError), match=text) as refused:
        with hvd.LocalSGD(model, optimizer, sync_every=3, delay=delay):
            train(model, optimizer, rank, range(4))
            if rank == size - 1:
                change(model, optimizer)
            train(model, optimizer, rank, range(4, 9))
    assert isinstance(refused.value, InvalidArgumentError if rank == size - 1 else MismatchError)
    assert rank == size - 1 or f"rank {size - 1} cannot take part in round 2" in str(refused.value)


def test_a_weight_that_is_none_is_refused_on_all_ranks(rank, size):
    model = make_model()
    optimizer = sgd(model)
    with pytest.raises((InvalidArgumentError, MismatchError), match=r"weight\(\) returned nan"):
        with hvd.LocalSGD(model, optimizer, sync_every=2, weight=lambda: float("nan") if rank == size - 1 else 1.0):
            train(model, optimizer, rank, range(2))


def test_ranks_leave_at_different_times_and_enter_again(rank):
    model = make_model()
    optimizer = sgd(model)
    local = hvd.LocalSGD(model, optimizer, sync_every=3)
    for _ in range(2):
        with local:
            train(model, optimizer, rank, range(2 + 4 * rank))
        assert_replicas_identical(model)
    with local, pytest.raises(InvalidArgumentError, match="entered twice"):
        local.__enter__()


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    with pytest.raises(InvalidArgumentError, match="weight is on the device meta"):
        hvd.LocalSGD(model, sgd(model), sync_every=3)

"""DistributedOptimizer against plain torch on the whole batch, and what it promises besides."""

import copy
import io
import logging
import warnings

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.replicas import assert_replicas_identical, assert_same
from support.training import make_data, make_model, share, step, wrap

CODECS = ["none", "fp16", "bf16", "onebit", "terngrad(bits=2)", hvd.Compression.terngrad(bits=4)]


@pytest.mark.parametrize("topology", ["auto", "ps", "ring", "two_level"])
@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    lambda p: torch.optim.Adam(p, lr=0.003),
], ids=["SGD", "Adam"])  # fmt: skip
def test_equals_plain_torch_on_the_whole_batch(make, topology, rank, size):
    model, plain = make_model(), make_model()
    optimizer = wrap(model, make(model.parameters()), topology=topology)
    reference = make(plain.parameters())
    assert isinstance(optimizer, type(reference)) and type(optimizer).__name__ == type(reference).__name__
    for batch in make_data(size):
        step(model, optimizer, share(batch, rank))
        step(plain, reference, batch)
    assert_same(model, plain, rtol=1e-3, atol=1e-4)
    assert_replicas_identical(model)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("topology", ["auto", "ps", "two_level"])
def test_replicas_stay_identical_and_learn(codec, topology, rank, size):
    model = make_model(seed=rank)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), compression=codec, topology=topology)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    batch = make_data(size, 1)[0]
    first = F.cross_entropy(model(batch[0]), batch[1]).item()
    for _ in range(20):
        step(model, optimizer, share(batch, rank))
    assert_replicas_identical(model)
    assert F.cross_entropy(model(batch[0]), batch[1]).item() < first


def test_predivide_changes_nothing_but_rounding(rank, size):
    models = [make_model(), make_model()]
    optimizers = [wrap(models[0]), wrap(models[1], gradient_predivide_factor=4.0)]
    for batch in make_data(size):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, share(batch, rank))
    assert_same(*models)


@pytest.mark.parametrize("shape", [(50_000,), (200, 250)])
def test_predivide_keeps_half_precision_from_overflowing(shape):
    """The sum of two is beyond the largest float16, and on its way in a ring it is stored as one."""
    weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=2.0**-10)
    named = [("weight", weight)]
    optimizer = hvd.DistributedOptimizer(optimizer, named, gradient_predivide_factor=4.0, topology="ring")
    gradient = torch.full(shape, 2.0**15, dtype=torch.float16)
    weight.backward(gradient.t().contiguous().t())
    optimizer.step()
    assert torch.equal(weight.grad, gradient) and torch.equal(weight.data, torch.full_like(weight, -32.0))


@pytest.mark.interplay("gradient accumulation", "DistributedOptimizer", "supported", "`backward_passes_per_step=`")
def test_backward_passes_accumulate_locally(rank, size):
    """Two half batches per step add up to twice the mean of the whole one."""
    model, plain = make_model(), make_model()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), backward_passes_per_step=2)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in make_data(size):
        x, y = share(batch, rank)
        optimizer.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            F.cross_entropy(model(x[half]), y[half]).backward()
        optimizer.step()
        step(plain, reference, batch)
    assert_same(model, plain)


@pytest.mark.interplay("gradient accumulation", "DistributedOptimizer", "refused", "more passes than announced")
def test_more_passes_than_announced_is_an_error(rank, size):
    if size < 2:
        pytest.skip("a world of one has no hooks")
    model = make_model()
    optimizer = wrap(model)
    batch = share(make_data(size)[0], rank)
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    too_many = "Gradients were computed more than backward_passes_per_step times.*requires_grad_"
    with pytest.raises(hvd.CallOrderError, match=too_many):
        F.cross_entropy(model(batch[0]), batch[1]).backward()
    with pytest.raises(AssertionError, match="zero_grad.. was called after loss.backward"):
        optimizer.zero_grad()
    with pytest.raises(ValueError, match="was changed after backward had submitted it.*DistributedDataParallel"):
        optimizer.step()
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    for _ in range(2):
        F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    assert_replicas_identical(model)


@pytest.mark.interplay(
    "gradient clipping",
    "DistributedOptimizer",
    "supported",
    "after `synchronize()`, with `step()` within `skip_synchronize()`",
)
def test_clipping_between_synchronize_and_step(rank, size):
    model, plain = make_model(), make_model()
    optimizer, reference = wrap(model), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in make_data(size):
        for m, o, data in ((model, optimizer, share(batch, rank)), (plain, reference, batch)):
            o.zero_grad()
            F.cross_entropy(m(data[0]), data[1]).backward()
            if o is optimizer:
                optimizer.synchronize()
            nn.utils.clip_grad_norm_(m.parameters(), 0.05)
            if o is optimizer:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                o.step()
    assert_same(model, plain)


def test_step_after_synchronize_warns_once(rank, size):
    if size < 2:
        pytest.skip("a world of one has nothing to synchronise twice")
    model = make_model()
    optimizer = wrap(model)
    batch = share(make_data(size)[0], rank)
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert len(caught) == 1
    assert str(caught[0].message).startswith("optimizer.step() called without optimizer.skip_synchronize()")


@pytest.mark.interplay(
    "parameters without a gradient on some ranks", "DistributedOptimizer", "supported", "they count as zeros there"
)
def test_gradients_that_only_some_ranks_have(rank, size):
    """A parameter that this rank's forward did not use counts as zero."""
    model = nn.ModuleList([nn.Linear(3, 5000), nn.Linear(3, 7)])
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        model[0 if rank == 0 else 1](torch.ones(1, 3)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(model[0].bias, torch.full((5000,), -2.0 / size))
    torch.testing.assert_close(model[1].bias, torch.full((7,), -2.0 * (size - 1) / size))


@pytest.mark.interplay(
    "channels_last and other gradients that are not contiguous", "DistributedOptimizer", "supported", "by way of a copy"
)
def test_gradients_that_are_not_contiguous(rank, size):
    """channels_last parameters have channels_last gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)).to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    optimizer, reference = wrap(model), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(size, 3, 8, 8).to(memory_format=torch.channels_last)
    for _ in range(3):
        for m, o, x in ((model, optimizer, images[rank : rank + 1]), (plain, reference, images)):
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
        if size > 1:
            assert not model[2].weight.grad.is_contiguous()
    assert_same(model, plain)


@pytest.mark.interplay("bfloat16 and float16 parameters", "DistributedOptimizer", "supported", "sums are in float32")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype, rank, size):
    model, plain = make_model().to(dtype), make_model().to(dtype)
    optimizer, reference = wrap(model), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for x, y in make_data(size, 2):
        step(model, optimizer, share((x.to(dtype), y), rank))
        step(plain, reference, (x.to(dtype), y))
    tolerance = 1e-9 if dtype == torch.float64 else 5e-2
    assert_same(model, plain, rtol=tolerance, atol=tolerance)
    assert_replicas_identical(model)


@pytest.mark.interplay(
    "frozen parameters", "DistributedOptimizer", "supported", "and those that are unfrozen or added later"
)
def test_parameters_that_are_unfrozen_or_added_later(rank, size):
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(2, 4)])
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model[1].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=1.0))
    model[1].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for _ in range(2):
        optimizer.zero_grad()
        sum(layer(torch.full((1, 2), float(rank))).sum() for layer in model).backward()
        optimizer.step()
    assert_replicas_identical(model)
    torch.testing.assert_close(model[2].weight, torch.full((4, 2), -(size - 1.0)))


@pytest.mark.interplay(
    "LBFGS and other closures", "DistributedOptimizer", "supported", "if the closure returns the mean of the losses"
)
def test_closures_are_synchronised_after_each_call(rank, size):
    model, plain = make_model(), make_model()
    optimizer = wrap(model, torch.optim.LBFGS(model.parameters(), max_iter=3))
    reference = torch.optim.LBFGS(plain.parameters(), max_iter=3)
    batch = make_data(size)[0]

    def closure_of(m, o, data):
        def closure():
            o.zero_grad()
            loss = F.cross_entropy(m(data[0]), data[1])
            loss.backward()
            # LBFGS compares losses: all ranks must see the same one.
            return hvd.allreduce(loss.detach()) if o is optimizer else loss

        return closure

    optimizer.step(closure_of(model, optimizer, share(batch, rank)))
    reference.step(closure_of(plain, reference, batch))
    assert_same(model, plain, rtol=1e-2, atol=1e-3)
    assert_replicas_identical(model)


def test_steps_with_closures_need_no_advice(rank, size):
    model = make_model()
    optimizer = wrap(model)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.ones(1, 20)), torch.tensor([rank % 4]))
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.step(closure)


@pytest.mark.interplay("learning rate schedules", "DistributedOptimizer", "supported")
def test_a_learning_rate_schedule_from_before_or_after(rank, size):
    for wrap_first in (True, False):
        model = nn.Linear(2, 2)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if wrap_first:
            optimizer = wrap(model, optimizer)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        if not wrap_first:
            optimizer = wrap(model, optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 2), float(rank))).sum().backward()
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a schedule made before does not see the steps of the new optimizer
                schedule.step()
        torch.testing.assert_close(model.weight, torch.full((2, 2), -1.5 * (size - 1) / 2))


def test_mismatch_in_backward_leaves_the_optimizer_usable(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    model = nn.Linear(3, 4 if rank else 5)
    optimizer = wrap(model)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(hvd.MismatchError, match="weight|bias"):
        optimizer.step()
    model = nn.Linear(3, 4)
    optimizer = wrap(model)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


# --- codec state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["onebit", "none", "terngrad", "test_state", "test_lowrank", "test_lowrank(start=3)"])
def test_a_checkpoint_continues_bit_for_bit(codec, rank, size):
    data = make_data(size, 8)
    model = make_model()
    optimizer = wrap(model, compression=codec)
    for batch in data[:4]:
        step(model, optimizer, share(batch, rank))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    if size > 1 and codec == "test_state":
        states = saved[1]["casync"]["states"]
        assert set(states) == {"0.weight", "2.weight"} and not saved[1]["casync"]["residuals"]
        arrays = states["0.weight"]["arrays"]
        assert states["0.weight"]["agreed"] and arrays["v"]["values"].numel() == 6000
        assert [name for name, array in arrays.items() if array["shared"]] == ["tau"]
        assert [name for name, array in arrays.items() if array["pending"]] == ["v"]
        assert hvd.allgather_object(arrays["tau"]["values"].item()) == [arrays["tau"]["values"].item()] * size
    elif size > 1 and codec == "onebit":
        residuals = saved[1]["casync"]["residuals"]
        assert set(residuals) == {"0.weight", "2.weight"}, "only those of at least min_numel elements are compressed"
        assert residuals["0.weight"].numel() == 6000 and residuals["0.weight"].abs().sum() > 0
        assert (saved[1]["casync"]["rank"], saved[1]["casync"]["size"]) == (rank, size)
    else:
        assert ("casync" in saved[1]) == (size > 1 and codec != "none")
    for batch in data[4:]:
        step(model, optimizer, share(batch, rank))

    again = make_model(seed=5)
    resumed = wrap(again, compression=codec)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert str(resumed.state_dict()) == str(saved[1])
    file = io.BytesIO()
    torch.save(saved[1], file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for batch in data[4:]:
        step(again, resumed, share(batch, rank))
    assert_same(model, again, rtol=0, atol=0)


def test_a_checkpoint_of_rank_0_alone_starts_residuals_at_zero(rank, size, caplog):
    if size < 2:
        pytest.skip("a world of one has no residuals")
    model = make_model()
    optimizer = wrap(model, compression="onebit")
    step(model, optimizer, share(make_data(size)[0], rank))
    saved = hvd.broadcast_object(optimizer.state_dict(), root_rank=0)
    with caplog.at_level(logging.WARNING, logger="casync"):
        optimizer.load_state_dict(saved)
    assert len(caplog.records) == (rank != 0)
    residuals = optimizer.state_dict()["casync"]["residuals"]
    assert set(residuals) == ({"0.weight", "2.weight"} if rank == 0 else set())


def test_a_checkpoint_of_rank_0_alone_gives_what_is_shared(rank, size, caplog):
    if size < 2:
        pytest.skip("a world of one has no codec state")
    model = make_model()
    optimizer = wrap(model, compression="test_state")
    for batch in make_data(size, 2):
        step(model, optimizer, share(batch, rank))
    saved = hvd.broadcast_object(optimizer.state_dict(), root_rank=0)
    with caplog.at_level(logging.WARNING, logger="casync"):
        optimizer.load_state_dict(saved)
    assert len(caplog.records) == (rank != 0)
    arrays = optimizer.state_dict()["casync"]["states"]["0.weight"]["arrays"]
    assert set(arrays) == ({"v", "u", "tau"} if rank == 0 else {"tau"})
    step(model, optimizer, share(make_data(size)[0], rank))
    after = optimizer.state_dict()["casync"]["states"]["0.weight"]
    assert after["agreed"] and torch.equal(after["arrays"]["tau"]["values"], arrays["tau"]["values"])
    assert_replicas_identical(model)


def test_a_checkpoint_from_before_codec_state_is_read(rank, size):
    if size < 2:
        pytest.skip("a world of one has no residuals")
    model = make_model()
    optimizer = wrap(model, compression="onebit")
    step(model, optimizer, share(make_data(size)[0], rank))
    saved = copy.deepcopy(optimizer.state_dict())
    first = {key: value for key, value in saved["casync"].items() if key != "states"}
    optimizer.load_state_dict({**saved, "casync": {**first, "format": 1}})
    assert str(optimizer.state_dict()["casync"]["residuals"]) == str(saved["casync"]["residuals"])
    with pytest.raises(ValueError, match="format 3.*reads formats 1 and 2"):
        optimizer.load_state_dict({**saved, "casync": {**first, "format": 3}})


def test_state_of_another_model_is_refused(rank, size):
    if size < 2:
        pytest.skip("a world of one has no codec state")
    model = make_model()
    optimizer = wrap(model, compression="test_state")
    step(model, optimizer, share(make_data(size)[0], rank))
    saved = copy.deepcopy(optimizer.state_dict())
    array = saved["casync"]["states"]["0.weight"]["arrays"]["v"]
    array["values"] = array["values"][:17]
    with pytest.raises(ValueError, match=r"0.weight.*holds 17 values of 'v'.*keeps 6000"):
        optimizer.load_state_dict(saved)


def test_broadcast_never_copies_codec_state(rank, size):
    if size < 2:
        pytest.skip("a world of one has no residuals")
    model = make_model()
    optimizer = wrap(model, compression="onebit")
    step(model, optimizer, share(make_data(size)[0], rank))
    before = optimizer.state_dict()["casync"]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert str(optimizer.state_dict()["casync"]) == str(before)


@pytest.mark.parametrize("earlier", ["onebit", "tbq", "terngrad(bits=2)"])
def test_an_earlier_training_leaves_nothing_to_one_that_compresses_nothing(earlier, rank, size):
    """Seen on a GPU: what the codec had not sent of the first model went into the first step of the second."""

    def trained(codec):
        model = make_model()
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), compression=codec)
        for batch in make_data(size, 3):
            step(model, optimizer, share(batch, rank))
        return model

    alone = trained("none")
    trained(earlier)
    assert_same(trained("none"), alone, rtol=0, atol=0)


def test_a_new_optimizer_starts_without_residuals_and_owns_its_names(rank, size):
    if size < 2:
        pytest.skip("a world of one has no residuals")
    model = make_model()
    first = wrap(model, compression="onebit")
    batch = share(make_data(size)[0], rank)
    step(model, first, batch)
    other = make_model()
    second = wrap(other, compression="onebit")
    assert not second.state_dict()["casync"]["residuals"]
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    with pytest.raises(ValueError, match="made later"):
        first.step()

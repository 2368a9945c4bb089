"""GradScaler and autocast: gradients that carry a loss scale which changes, and steps that are skipped.

Scales are powers of two, so nothing but the exponents of gradients may differ: a run with a scaler must be one without,
bit for bit, whatever its codec keeps.
"""

import functools
import logging

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from support import training
from support.replicas import assert_replicas_identical, assert_same_bits
from support.training import batch_of, make_model, new_session

KEEPING = [
    "onebit", "tbq", "dgc(warmup_steps=0, ratio=0.05)", "always(graddrop(drop=0.9))", "adacomp", "threelc",
    "powersgd(rank=2, start_step=2)", "terngrad(bits=4)", "none",
    "onebit(feedback_decay=0.75)",
]  # fmt: skip


wrap = functools.partial(training.wrap, lr=0.05)


def loss_of(model, step, rank, poisoned=False):
    x, y = batch_of(step, rank)
    loss = F.cross_entropy(model(x), y)
    return loss * float("inf") if poisoned else loss


def scaler_of(**arguments) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**10, "growth_interval": 2, **arguments})


def scaled_step(model, optimizer, scaler, loss, clip=None):
    """Horovod's documented recipe."""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


@pytest.mark.interplay("autocast", "DistributedOptimizer", "supported", "to bfloat16")
@pytest.mark.interplay(
    "GradScaler",
    "DistributedOptimizer",
    "supported",
    "by Horovod's recipe, with `grad_scaler=` where a codec keeps something",
)
@pytest.mark.parametrize(
    ("codec", "autocast"), [*((codec, False) for codec in KEEPING), ("onebit", True), ("none", True)]
)
def test_a_scale_that_changes_changes_nothing(codec, autocast, rank, size):
    scaled, plain = make_model(), make_model()
    scaler = scaler_of()
    optimizer = wrap(scaled, compression=codec, grad_scaler=scaler)
    for step in range(8):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(scaled, step, rank)
        scaled_step(scaled, optimizer, scaler, loss, clip=2.0)
    assert scaler.get_scale() == 2.0**14
    kept = optimizer.state_dict().get("casync", {})
    new_session()
    other = wrap(plain, compression=codec)
    for step in range(8):
        other.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(plain, step, rank)
        loss.backward()
        other.synchronize()
        nn.utils.clip_grad_norm_(plain.parameters(), 2.0)
        with other.skip_synchronize():
            other.step()
    assert_same_bits(scaled, plain)
    assert str(kept) == str(other.state_dict().get("casync", {}))


@pytest.mark.interplay(
    "gradient accumulation", "DistributedOptimizer", "supported", "with a GradScaler, whose scale holds for all passes"
)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("codec", ["onebit", "none"])
def test_passes_that_accumulate_under_a_scale_that_changes(codec, autocast, rank, size):
    trained = []
    for scaler in (scaler_of(), scaler_of(enabled=False)):
        new_session()
        model = make_model()
        optimizer = wrap(model, compression=codec, grad_scaler=scaler, backward_passes_per_step=3)
        for step in range(6):
            optimizer.zero_grad()
            for number in range(3):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = loss_of(model, 3 * step + number, rank, poisoned=step == 3 and number == rank == 0) / 3
                scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                if scaler.is_enabled() or step != 3:  # which the scaler skips
                    scaler.step(optimizer)
            scaler.update()
        assert_replicas_identical(model)
        trained.append(model)
    assert_same_bits(*trained)


@pytest.mark.interplay(
    "GradScaler",
    "DistributedOptimizer",
    "supported",
    "an overflow on one rank skips the step on all, and leaves no NaN behind",
)
@pytest.mark.parametrize("codec", KEEPING)
def test_an_overflow_on_one_rank_skips_the_step_on_all_and_poisons_nothing(codec, rank, size):
    model, scaler = make_model(), scaler_of(growth_interval=1000)
    optimizer = wrap(model, compression=codec, grad_scaler=scaler)
    before = None
    for step in range(8):
        poisoned = step == 4 and rank == size - 1
        if step == 4:
            before = [parameter.clone() for parameter in model.parameters()]
        scaled_step(model, optimizer, scaler, loss_of(model, step, rank, poisoned))
        if step == 4:
            assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
            assert scaler.get_scale() == 2.0**9
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert not torch.equal(before[0], model[0].weight)
    kept = optimizer.state_dict().get("casync", {"residuals": {}, "states": {}})
    values = [*kept["residuals"].values()]
    values += [array["values"] for state in kept["states"].values() for array in state["arrays"].values()]
    assert all(array.isfinite().all() for array in values)
    assert_replicas_identical(model)


@pytest.mark.interplay(
    "GradScaler",
    "DistributedOptimizer",
    "supported",
    "an overflow on one rank skips the step on all, and leaves no NaN behind",
)
def test_an_overflow_leaves_the_residual_of_its_rank(rank, size):
    if size < 2:
        pytest.skip("a world of one has no residuals")
    model, scaler = make_model(), scaler_of()
    optimizer = wrap(model, compression="onebit", grad_scaler=scaler)
    for step in range(3):
        scaled_step(model, optimizer, scaler, loss_of(model, step, rank))
    before = optimizer.state_dict()["casync"]["residuals"]
    model[2].weight.register_hook(lambda gradient: torch.full_like(gradient, float("inf")))
    scaled_step(model, optimizer, scaler, loss_of(model, 3, rank))
    after = optimizer.state_dict()["casync"]["residuals"]
    assert before["2.weight"].abs().sum() > 0
    assert torch.equal(before["2.weight"], after["2.weight"])


def test_what_is_flushed_is_without_the_scale(rank, size):
    pending = []
    for scaler in (scaler_of(), scaler_of(enabled=False)):
        new_session()
        model = make_model()
        optimizer = wrap(model, compression="onebit", grad_scaler=scaler)
        for step in range(3):
            scaled_step(model, optimizer, scaler, loss_of(model, step, rank))
        optimizer.flush_residuals()
        pending.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*pending, strict=True))


@pytest.mark.parametrize("codec", ["onebit", "dgc(warmup_steps=0, ratio=0.05)"])
def test_a_scaler_is_asked_once_a_step(codec, rank, size):
    """On a GPU each question waits for all that the device has been given to do."""
    if size < 2:
        pytest.skip("a world of one tells nobody")
    model, scaler = make_model(), scaler_of(growth_interval=1)
    ask, told = scaler.get_scale, []
    scaler.get_scale = lambda: told.append(ask()) or told[-1]
    optimizer = wrap(model, compression=codec, grad_scaler=scaler)
    for step in range(3):
        scaled_step(model, optimizer, scaler, loss_of(model, step, rank))
    assert told == [2.0**10, 2.0**11, 2.0**12]


@pytest.mark.interplay(
    "GradScaler", "DistributedOptimizer", "refused", "one that was not given with a codec that keeps something"
)
def test_a_scaler_that_is_not_told_of_is_refused_where_its_scale_matters(rank, size):
    for codec, refused in (("onebit", size > 1), ("auto", size > 1), ("fp16", False), ("terngrad", False)):
        new_session()
        model, scaler = make_model(), scaler_of()
        optimizer = wrap(model, compression=codec)
        if refused:
            with pytest.raises(
                ValueError, match=rf"'{codec}' keeps what it has not sent.*DistributedOptimizer\(..., g"
            ):
                scaled_step(model, optimizer, scaler, loss_of(model, 0, rank))
        else:
            scaled_step(model, optimizer, scaler, loss_of(model, 0, rank))
    with pytest.raises(ValueError, match="grad_scaler=float is no torch.amp.GradScaler"):
        wrap(make_model(), grad_scaler=2.0)


@pytest.mark.interplay("GradScaler", "DistributedOptimizer", "refused", "`scaler.step()` before `synchronize()`")
def test_a_scaler_that_steps_before_gradients_are_synchronised_is_refused(rank, size):
    """Plain torch's recipe: the scaler would look at gradients that are under way."""
    model, scaler = make_model(), scaler_of()
    optimizer = wrap(model, grad_scaler=scaler)
    scaler.scale(loss_of(model, 0, rank)).backward()
    if size > 1:
        with pytest.raises(ValueError, match=r"Call optimizer.synchronize\(\) after loss.backward\(\), then scaler.un"):
            scaler.step(optimizer)
    else:
        scaler.step(optimizer)


# --- the hook of DDP ------------------------------------------------------------------------------------------


def train_ddp(model, rank, scaler, poisoned_at=None, **arguments):
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    state = hvd.ddp_state(named_parameters=model.named_parameters(), **arguments)
    ddp.register_comm_hook(state, hvd.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(8):
        optimizer.zero_grad()
        with ddp.no_sync():
            scaler.scale(loss_of(ddp, step + 20, rank)).backward()
        scaler.scale(loss_of(ddp, step, rank, poisoned=step == poisoned_at and rank == 0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
    return state


@pytest.mark.interplay(
    "GradScaler",
    "DDP hook",
    "supported",
    "with `grad_scaler=` where a codec keeps something; there is a warning without",
)
@pytest.mark.parametrize("codec", ["none", "always(onebit)", "powersgd(rank=2, start_step=2)"])
def test_ddp_with_a_scale_that_changes(codec, rank, size, gloo):
    scaled, plain = make_model(), make_model()
    scaler = scaler_of()
    kept = train_ddp(scaled, rank, scaler, compression=codec, grad_scaler=scaler).state_dict()
    assert scaler.get_scale() == 2.0**14
    new_session()
    off = scaler_of(enabled=False)
    assert str(kept) == str(train_ddp(plain, rank, off, compression=codec, grad_scaler=off).state_dict())
    assert_same_bits(scaled, plain)


@pytest.mark.parametrize(("codec", "asked"), [("always(onebit)", 8), ("fp16", 0), ("none", 0)])
def test_ddp_asks_a_scaler_once_a_step_if_its_scale_matters(codec, asked, rank, size, gloo):
    scaler, told = scaler_of(), []
    ask = scaler.get_scale
    scaler.get_scale = lambda: told.append(ask()) or told[-1]
    train_ddp(make_model(), rank, scaler, compression=codec, grad_scaler=scaler)
    assert len(told) == asked


@pytest.mark.interplay(
    "GradScaler", "DDP hook", "supported", "an overflow on one rank skips the step on all, and leaves no NaN behind"
)
def test_ddp_with_an_overflow_on_one_rank(rank, size, gloo):
    model, scaler = make_model(), scaler_of(growth_interval=1000)
    state = train_ddp(model, rank, scaler, poisoned_at=4, compression="always(onebit)", grad_scaler=scaler)
    assert scaler.get_scale() == 2.0**9
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert all(residual.isfinite().all() for residual in state.state_dict()["residuals"].values())
    assert_replicas_identical(model)


@pytest.mark.interplay(
    "GradScaler",
    "DDP hook",
    "supported",
    "with `grad_scaler=` where a codec keeps something; there is a warning without",
)
def test_ddp_warns_of_a_scaler_that_it_was_not_given(rank, size, gloo, caplog):
    scaler = scaler_of()
    with caplog.at_level(logging.WARNING, logger="casync"):
        train_ddp(make_model(), rank, scaler, compression="always(onebit)")
    (text,) = [record.getMessage() for record in caplog.records]
    assert "always(onebit)" in text and "ddp_state(..., grad_scaler=scaler)" in text

"""Who holds an optimizer, its groups or its step keeps them, whatever is loaded: schedules, step hooks, copies."""

import copy
import io
import pickle
import warnings

import casync.torch as hvd
import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from support.replicas import assert_replicas_identical, assert_same, assert_same_everywhere
from support.training import make_data, make_model, share, step, wrap

LOADS = {
    "nothing": lambda optimizer: None,
    "load_state_dict": lambda optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    "broadcast_optimizer_state": lambda optimizer: hvd.broadcast_optimizer_state(optimizer, root_rank=0),
}
SCHEDULES = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1)),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.5)], [2]
    ),
}


@pytest.mark.interplay("learning rate schedules", "DistributedOptimizer", "supported", "made before or after it")
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["Average", "Adasum"])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("schedule_of", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("is_before", [True, False])
def test_a_schedule_drives_the_rate_on_every_rank(is_before, schedule_of, load, op, rank):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(make_model().parameters(), lr=0.1, momentum=0.9)
    wanted = schedule_of(reference)
    schedule = schedule_of(optimizer) if is_before else None
    optimizer = wrap(model, optimizer, op=op)
    schedule = schedule or schedule_of(optimizer)
    groups, state, bound = optimizer.param_groups, optimizer.state, optimizer.step
    load(optimizer)
    assert optimizer.param_groups is groups and optimizer.state is state and optimizer.step == bound
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in make_data(hvd.size(), 4):
            step(model, optimizer, share(batch, rank))
            schedule.step()
            reference.step()
            wanted.step()
            assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
    assert_replicas_identical(model)


@pytest.mark.parametrize("wrapped", [True, False])
def test_what_is_broadcast_goes_into_the_groups_that_are_there(wrapped, rank):
    model = make_model()
    plain = torch.optim.Adam(model.parameters(), lr=0.1 if rank == 0 else 0.5)
    if rank == 0:
        model(torch.ones(1, 20)).sum().backward()
        plain.step()
    optimizer = wrap(model, plain) if wrapped else plain
    group, state = plain.param_groups[0], plain.state
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0] is group and group["lr"] == 0.1
    assert optimizer.state is state and len(state) == 6
    assert_same_everywhere(state[model[0].weight]["exp_avg"])


@pytest.mark.interplay("step hooks", "DistributedOptimizer", "supported", "once a step, with the mean gradients")
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["Average", "Adasum"])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_step_hooks_run_once_a_step(load, op, rank, size):
    model = torch.nn.Linear(3, 2)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), op=op)
    load(optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.bias.grad[0].item()))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    everywhere = register_optimizer_step_post_hook(lambda *_: seen.append("everywhere"))
    try:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().mul(rank + 1.0).backward()
            optimizer.step()
    finally:
        everywhere.remove()
    gradient = rank + 1.0 if op == hvd.Adasum else (size + 1) / 2
    assert seen == [gradient, "post", "everywhere"] * 2


def test_a_hook_that_clips_and_one_that_averages(rank, size):
    """A moving average in a step hook is the same on all ranks; a hook before the step may change gradients."""
    model, plain = make_model(), make_model()
    optimizer, reference = wrap(model), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    averages = []
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for one, of in ((optimizer, model), (reference, plain)):
        average = of[0].weight.detach().clone()
        averages.append(average)
        one.register_step_pre_hook(lambda *_, of=of: torch.nn.utils.clip_grad_norm_(of.parameters(), 0.05) and None)
        one.register_step_post_hook(lambda *_, of=of, average=average: average.lerp_(of[0].weight.detach(), 0.5))
    for batch in make_data(size):
        step(model, optimizer, share(batch, rank))
        step(plain, reference, batch)
    torch.testing.assert_close(*averages, rtol=1e-3, atol=1e-5)
    assert_same_everywhere(averages[0])
    assert_same(model, plain, rtol=1e-3, atol=1e-4)


# --- wrapping, compiling, copying -------------------------------------------------------------------------------------


@pytest.mark.interplay("wrapping twice", "DistributedOptimizer", "supported", "it is wrapped anew")
@pytest.mark.parametrize("compression", ["none", "onebit", "dgc"])
def test_wrapping_twice_is_wrapping_once(compression, rank, size):
    models, saved = [], []
    for times in (1, 2):
        model = make_model()
        optimizer = wrap(model, compression=compression)
        if times == 2:
            optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
        for batch in make_data(size):
            step(model, optimizer, share(batch, rank))
        assert type(optimizer).__name__ == "SGD"
        models.append(model)
        saved.append(str(optimizer.state_dict()))
    assert_same(*models, rtol=0, atol=0)
    assert saved[0] == saved[1]


@pytest.mark.interplay("wrapping twice", "DistributedOptimizer", "refused", "between backward and step")
def test_what_is_being_synchronised_is_not_wrapped_anew(rank, size):
    if size < 2:
        pytest.skip("a world of one synchronises nothing")
    model = make_model()
    optimizer = wrap(model)
    model(torch.ones(1, 20)).sum().backward()
    with pytest.raises(ValueError, match="being synchronised"):
        wrap(model, optimizer)
    optimizer.step()


@pytest.mark.slow
@pytest.mark.interplay("torch.compile", "DistributedOptimizer", "supported", "of the step: it runs as it is")
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["Average", "Adasum"])
def test_a_compiled_step(op, rank, size):
    models = [make_model(), make_model()]
    optimizers = [wrap(model, op=op) for model in models]
    schedules = [lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers]

    def whole():
        optimizers[1].step()
        schedules[1].step()

    compiled = torch.compile(whole, backend="eager")
    also = torch.compile(optimizers[1].step, backend="eager")
    for index, batch in enumerate(make_data(size)):
        step(models[0], optimizers[0], share(batch, rank))
        schedules[0].step()
        optimizers[1].zero_grad()
        torch.nn.functional.cross_entropy(models[1](share(batch, rank)[0]), share(batch, rank)[1]).backward()
        if index % 2:
            compiled()
        else:
            also()
            schedules[1].step()
    assert_same(*models, rtol=0, atol=0)


@pytest.mark.interplay("copy.deepcopy", "DistributedOptimizer", "supported", "with its model or alone")
@pytest.mark.parametrize("compression", ["none", "dgc", "onebit"])
def test_a_deep_copy_trains_as_its_original(compression, rank, size):
    data = make_data(size, 6)
    model = make_model()
    groups = [[model[0].weight, model[0].bias]]
    optimizer = wrap(model, compression=compression, groups=groups)
    copies = copy.deepcopy((model, optimizer))  # codecs keep nothing yet
    step(model, optimizer, share(data[0], rank))
    alone = copy.deepcopy(optimizer)
    assert [p.shape for group in alone.param_groups for p in group["params"]] == [p.shape for p in model.parameters()]
    for batch in data[1:3]:
        step(model, optimizer, share(batch, rank))
    del optimizer
    for batch in data[:3]:
        step(*copies, share(batch, rank))
    assert_same(model, copies[0], rtol=0, atol=0)
    assert copies[1]._gradients.entries.keys() == (set(copies[0].parameters()) if size > 1 else set())


def test_a_copy_that_is_not_used_takes_nothing_from_its_original(rank, size):
    """Not even the residuals, of which each name has one owner."""
    model = make_model()
    optimizer = wrap(model, compression="onebit")
    data = make_data(size)
    step(model, optimizer, share(data[0], rank))
    best = copy.deepcopy(optimizer)
    for batch in data[1:]:
        step(model, optimizer, share(batch, rank))
    assert_replicas_identical(model)
    assert len(best.state) == 6


@pytest.mark.interplay("pickle", "DistributedOptimizer", "refused", "save `state_dict()`")
@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, lambda optimizer: torch.save(optimizer, io.BytesIO())])
def test_a_pickle_is_refused_by_name(take):
    optimizer = wrap(make_model())
    with pytest.raises(hvd.NotAvailableError, match=r"DistributedOptimizer cannot be pickled.*state_dict\(\)"):
        take(optimizer)

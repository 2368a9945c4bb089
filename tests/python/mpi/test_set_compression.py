"""set_compression: another codec from one step on, of which nothing is lost."""

import casync.torch as hvd
import numpy as np
import pytest
import torch
from casync.torch.ddp import ddp_hook, ddp_state
from torch import nn

from support.training import batch_of, make_model, new_session, step, wrap

KEEPING = [
    "onebit", "covap(none, interval=3)", "covap(onebit, interval=2)", "topk(ratio=0.05)",
    "powersgd(rank=2, start_step=2)", "threelc", "int4",
]  # fmt: skip
STEPS = 5


def gradient_of(number, rank, shape):
    values = np.random.default_rng((number, rank)).standard_normal(shape)
    return torch.from_numpy(values.astype(np.float32))


def optimizer_of(parameters, **arguments):
    """One whose step subtracts the mean gradient."""
    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), [*enumerate_names(parameters)], **arguments)


def enumerate_names(parameters):
    return ((f"w{number}", parameter) for number, parameter in enumerate(parameters))


def weights(*shapes):
    return [nn.Parameter(torch.zeros(shape)) for shape in shapes]


def take_step(optimizer, parameters, number, rank):
    optimizer.zero_grad()
    sum((p * gradient_of(number, rank, p.shape)).sum() for p in parameters).backward()
    optimizer.step()


def mean_of_all(first, last, size, shape):
    """In float64: what plain SGD subtracts in steps `first` to `last`."""
    return sum(gradient_of(n, r, shape).double() for n in range(first, last) for r in range(size)) / size


@pytest.mark.parametrize(
    "after",
    ["none", "fp16", "onebit(feedback_decay=0.75)", "powersgd(rank=2, start_step=0)", "covap(none, interval=2)"],
)
@pytest.mark.parametrize("before", KEEPING)
def test_nothing_that_was_held_back_is_lost(before, after, rank, size):
    (weight,) = parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression=before)
    for number in range(STEPS):
        take_step(optimizer, parameters, number, rank)
    optimizer.set_compression(after)
    take_step(optimizer, parameters, STEPS, rank)
    whole = mean_of_all(0, STEPS + 1, size, weight.shape)
    torch.testing.assert_close(-weight.detach().double(), whole, rtol=0, atol=2e-4)
    take_step(optimizer, parameters, STEPS + 1, rank)
    if size > 1:
        assert hvd.plans()["allreduce.w0"].codec.startswith(
            after.removeprefix("covap(").partition("(")[0].split(",")[0]
        )


def test_from_then_on_it_is_as_if_the_codec_had_been_there_from_the_begin(rank, size):
    parameters, others = weights((90, 80)), weights((90, 80))
    optimizer = optimizer_of(parameters, compression="fp16", topology="direct")
    take_step(optimizer, parameters, 0, rank)
    optimizer.set_compression("onebit")
    with torch.no_grad():
        parameters[0].zero_()
    for number in range(1, STEPS):
        take_step(optimizer, parameters, number, rank)
    if size > 1:
        assert hvd.plans()["allreduce.w0"].codec == "onebit"
    new_session()
    other = optimizer_of(others, compression="onebit", topology="direct")
    for number in range(1, STEPS):
        take_step(other, others, number, rank)
    assert torch.equal(parameters[0], others[0])


def test_rules_by_name_change_only_the_gradients_whose_codec_they_change(rank, size, several):
    def run(changes):
        new_session()
        parameters = weights((90, 80), (70, 100))
        optimizer = optimizer_of(parameters, compression={"w0": "onebit", "w1": "int8"})
        for number in range(2 * STEPS):
            if changes and number == STEPS:
                optimizer.set_compression({"w0": "onebit", "w1": "fp16"})
            take_step(optimizer, parameters, number, rank)
        return parameters, {name: plan.codec for name, plan in hvd.plans().items()}

    plain, codecs_before = run(changes=False)
    changed, codecs_after = run(changes=True)
    assert torch.equal(plain[0], changed[0])
    assert not torch.equal(plain[1], changed[1])
    assert (codecs_before["allreduce.w1"], codecs_after["allreduce.w1"]) == ("int8", "fp16")
    assert codecs_before["allreduce.w0"] == codecs_after["allreduce.w0"] == "onebit"


def test_a_job_may_be_resumed_between_the_change_and_its_step(rank, size):
    (weight,) = parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="onebit")
    for number in range(STEPS):
        take_step(optimizer, parameters, number, rank)
    optimizer.set_compression("none")
    saved = optimizer.state_dict()
    new_session()
    optimizer = optimizer_of(parameters, compression="none")
    optimizer.load_state_dict(saved)
    take_step(optimizer, parameters, STEPS, rank)
    torch.testing.assert_close(
        -weight.detach().double(), mean_of_all(0, STEPS + 1, size, weight.shape), rtol=0, atol=2e-4
    )


def test_a_change_there_and_back_before_a_step_loses_nothing(rank, size):
    (weight,) = parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="topk(ratio=0.05)")
    for number in range(STEPS):
        take_step(optimizer, parameters, number, rank)
    optimizer.set_compression("fp16")
    optimizer.set_compression("topk(ratio=0.05)")
    take_step(optimizer, parameters, STEPS, rank)
    optimizer.set_compression("none")
    take_step(optimizer, parameters, STEPS + 1, rank)
    torch.testing.assert_close(
        -weight.detach().double(), mean_of_all(0, STEPS + 2, size, weight.shape), rtol=0, atol=2e-4
    )


def scaled_step(optimizer, scaler, parameters, number, rank, overflow=False):
    optimizer.zero_grad()
    gradients = [gradient_of(number, rank, p.shape) for p in parameters]
    if overflow:
        gradients[0][0, 0] = float("inf")
    scaler.scale(sum((p * g).sum() for p, g in zip(parameters, gradients, strict=True))).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("after", ["none", "int8", "topk(ratio=0.05)"])
def test_under_a_loss_scale_nothing_is_lost(after, rank, size):
    (weight,) = parameters = weights((90, 80))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    optimizer = optimizer_of(parameters, compression="onebit", grad_scaler=scaler)
    for number in range(4):
        scaled_step(optimizer, scaler, parameters, number, rank)
    optimizer.set_compression(after)
    scaled_step(optimizer, scaler, parameters, 4, rank)
    torch.testing.assert_close(-weight.detach().double(), mean_of_all(0, 5, size, weight.shape), rtol=0, atol=2e-4)


@pytest.mark.parametrize("codec", ["onebit", "powersgd(rank=2, start_step=0)"])
def test_what_went_uncompressed_in_a_step_that_was_skipped_goes_again(codec, rank, size):
    (weight, other) = parameters = weights((90, 80), (90, 80))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = optimizer_of(parameters, compression=codec, grad_scaler=scaler)
    for number in range(4):
        scaled_step(optimizer, scaler, parameters, number, rank)
    optimizer.set_compression("none")
    scaled_step(optimizer, scaler, parameters, 4, rank, overflow=rank == size - 1)
    scaled_step(optimizer, scaler, parameters, 5, rank)
    whole = mean_of_all(0, 4, size, weight.shape) + mean_of_all(5, 6, size, weight.shape)
    for parameter in (weight, other):
        torch.testing.assert_close(-parameter.detach().double(), whole, rtol=0, atol=2e-4)


def test_a_load_after_a_step_that_was_skipped_is_not_undone(rank, size):
    (weight,) = parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="onebit")
    start = optimizer.state_dict()
    for number in range(3):
        take_step(optimizer, parameters, number, rank)
    optimizer.set_compression("none")
    (weight * gradient_of(3, rank, weight.shape)).sum().backward()
    optimizer.synchronize()  # and no step
    optimizer.load_state_dict(start)
    with torch.no_grad():
        weight.zero_()
    take_step(optimizer, parameters, 0, rank)
    torch.testing.assert_close(-weight.detach().double(), mean_of_all(0, 1, size, weight.shape), rtol=0, atol=2e-6)


class Twice(torch.optim.Optimizer):
    """Steps twice by each call, with a gradient of its own each time, as LBFGS may."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure):
        for _ in range(2):
            closure()
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter -= parameter.grad


def test_a_closure_that_is_called_twice_uses_both_gradients(rank, size):
    (weight,) = parameters = weights((90, 80))
    optimizer = hvd.DistributedOptimizer(Twice(parameters), [("w0", weight)], compression="onebit")
    numbers = iter(range(8))

    def closure():
        optimizer.zero_grad()
        (weight * gradient_of(next(numbers), rank, weight.shape)).sum().backward()

    for number in range(4):
        if number == 2:
            optimizer.set_compression("none")
        optimizer.step(closure)
    torch.testing.assert_close(-weight.detach().double(), mean_of_all(0, 8, size, weight.shape), rtol=0, atol=2e-4)


def test_the_root_s_state_is_enough_between_the_change_and_its_step(rank, several):
    parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="onebit")
    for number in range(2):
        take_step(optimizer, parameters, number, rank)
    optimizer.set_compression("topk(ratio=0.05)")
    saved = optimizer.state_dict()
    new_session()
    optimizer = optimizer_of(parameters, compression="topk(ratio=0.05)")
    if rank == 0:
        optimizer.load_state_dict(saved)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    take_step(optimizer, parameters, 2, rank)
    take_step(optimizer, parameters, 3, rank)


def test_a_change_right_after_a_load_is_as_without_the_load(rank, size):
    def run(resumes):
        new_session()
        parameters = weights((90, 80))
        optimizer = optimizer_of(parameters, compression="onebit", topology="direct")
        for number in range(3):
            take_step(optimizer, parameters, number, rank)
        if resumes:
            saved = optimizer.state_dict()
            new_session()
            optimizer = optimizer_of(parameters, compression="onebit", topology="direct")
            optimizer.load_state_dict(saved)
        optimizer.set_compression("fp16")
        for number in range(3, 5):
            take_step(optimizer, parameters, number, rank)
        return parameters[0]

    assert torch.equal(run(resumes=False), run(resumes=True))


@pytest.mark.parametrize("goes_on", ["none", "onebit"])
def test_a_state_is_loaded_whatever_the_codec_is_now(goes_on, rank, size):
    (weight,) = parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="onebit")
    start = optimizer.state_dict()
    for number in range(3):
        take_step(optimizer, parameters, number, rank)
    saved = optimizer.state_dict()
    new_session()
    optimizer = optimizer_of(parameters, compression=goes_on)
    optimizer.load_state_dict(saved)
    optimizer.set_compression("none")
    take_step(optimizer, parameters, 3, rank)
    torch.testing.assert_close(-weight.detach().double(), mean_of_all(0, 4, size, weight.shape), rtol=0, atol=2e-4)
    with torch.no_grad():
        weight.zero_()
    optimizer.set_compression("onebit")
    for number in range(3):
        take_step(optimizer, parameters, number, rank)
    optimizer.set_compression("none")
    optimizer.load_state_dict(start)
    with torch.no_grad():
        weight.zero_()
    take_step(optimizer, parameters, 0, rank)
    torch.testing.assert_close(-weight.detach().double(), mean_of_all(0, 1, size, weight.shape), rtol=0, atol=2e-6)


def test_plans_and_a_monitor_name_the_codec_at_work(rank, several):
    parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="onebit", monitor=hvd.CompressionMonitor(every=1))
    for number, codec in enumerate(("onebit", "int8", "onebit")):
        optimizer.set_compression(codec)
        take_step(optimizer, parameters, 2 * number, rank)
        take_step(optimizer, parameters, 2 * number + 1, rank)
        assert hvd.plans()["allreduce.w0"].codec == codec
        assert hvd.metrics().compression["allreduce.w0"].codec == codec


def test_the_same_codec_in_other_words_changes_nothing(rank, several):
    def run(changes):
        new_session()
        parameters = weights((90, 80))
        optimizer = optimizer_of(parameters, compression="topk")
        for number in range(6):
            if changes and number == 3:
                optimizer.set_compression({"*": "topk(ratio=0.01, start_step=0)"})
            take_step(optimizer, parameters, number, rank)
        return parameters[0]

    assert torch.equal(run(changes=False), run(changes=True))


def test_a_fall_back_holds_where_the_codec_stays(rank, several):
    parameters = weights((90, 80))
    monitor = hvd.CompressionMonitor(every=1, fallback="bf16", residual_bound=2, rises=1)
    optimizer = optimizer_of(parameters, compression="topk(ratio=0.001)", monitor=monitor)
    for number in range(8):
        take_step(optimizer, parameters, number, rank)
    assert optimizer.state_dict()["casync"]["fallbacks"] == {"w0": "always(bf16)"}
    optimizer.set_compression("topk(ratio=0.001)")
    assert optimizer.state_dict()["casync"]["fallbacks"] == {"w0": "always(bf16)"}
    optimizer.set_compression("int8")
    assert optimizer.state_dict()["casync"]["fallbacks"] == {}


class Linear(nn.Module):
    """A model whose gradient is what it is called with."""

    def __init__(self):
        super().__init__()
        (self.weight,) = weights((90, 80))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def test_ddp_sends_again_what_overflowed(gloo, rank, size):
    model = Linear()
    state = ddp_state("onebit", model.named_parameters())
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(state, ddp_hook)
    optimizer, weight = torch.optim.SGD(model.parameters(), lr=1.0), model.weight
    for number in range(6):
        if number == 3:
            state.set_compression("none")
        gradient = gradient_of(number, rank, weight.shape)
        if number == 3 and rank == size - 1:
            gradient[2, 3] = float("inf")
        optimizer.zero_grad()
        wrapped(gradient).backward()
        if number != 3:
            optimizer.step()
        assert weight.grad.isfinite().all() == (number != 3)
    whole = mean_of_all(0, 6, size, weight.shape) - mean_of_all(3, 4, size, weight.shape)
    torch.testing.assert_close(-weight.detach().double(), whole, rtol=0, atol=2e-4)


@pytest.mark.parametrize("again", ["none", "topk(ratio=0.05)"])
def test_ddp_keeps_what_no_rank_took_in_the_step_of_the_change(again, gloo, rank, size):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = weights((90, 80), (90, 80))

        def forward(self, gradient, uses_b):
            return (self.a * gradient).sum() + ((self.b * gradient).sum() if uses_b else 0)

    model = Model()
    state = ddp_state("onebit", model.named_parameters())
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    wrapped.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(6):
        if number == 3:
            state.set_compression(again)
        if number == 5:
            state.set_compression("none")
        optimizer.zero_grad()
        wrapped(gradient_of(number, rank, model.b.shape), number != 3).backward()
        optimizer.step()
    shape = model.b.shape
    whole = mean_of_all(0, 6, size, shape)
    torch.testing.assert_close(-model.a.detach().double(), whole, rtol=0, atol=2e-4)
    whole -= mean_of_all(3, 4, size, shape)
    torch.testing.assert_close(-model.b.detach().double(), whole, rtol=0, atol=2e-4)


def test_ranks_that_differ_are_told(rank, several):
    parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="fp16")
    take_step(optimizer, parameters, 0, rank)
    optimizer.set_compression("onebit" if rank == 0 else "int8")
    with pytest.raises(hvd.MismatchError, match="compression") as caught:
        take_step(optimizer, parameters, 1, rank)
    assert "onebit" in str(caught.value) and "int8" in str(caught.value)


def test_what_cannot_be_is_refused_and_changes_nothing(rank, size):
    parameters = weights((90, 80))
    optimizer = optimizer_of(parameters, compression="onebit")
    take_step(optimizer, parameters, 0, rank)
    with pytest.raises(hvd.InvalidArgumentError, match="twobit"):
        optimizer.set_compression("twobit")
    with pytest.raises(hvd.InvalidArgumentError, match="w0"):
        optimizer.set_compression({"other.*": "onebit"})
    with pytest.raises(hvd.NotAvailableError, match="momentum"):
        optimizer.set_compression("dgc(ratio=0.01)")
    (parameters[0] * 2).sum().backward()
    if size > 1:
        with pytest.raises(AssertionError, match="before optimizer.step"):
            optimizer.set_compression("int8")
    optimizer.step()
    if size > 1:
        assert hvd.plans()["allreduce.w0"].codec == "onebit"


def test_an_optimizer_that_had_no_codec_claims_its_names(rank, several):
    parameters, others = weights((90, 80)), weights((90, 80))
    first = optimizer_of(parameters)
    second = optimizer_of(others)
    take_step(first, parameters, 0, rank)
    take_step(second, others, 0, rank)
    second.set_compression("onebit")
    with pytest.raises(hvd.InvalidArgumentError, match="made later"):
        take_step(first, parameters, 1, rank)
    for number in range(1, STEPS):
        take_step(second, others, number, rank)


def test_a_model_learns_through_three_codecs(rank, size):
    model = make_model()
    optimizer = wrap(model, compression="none", lr=0.05)
    losses = []
    for number in range(30):
        if number in (10, 20):
            optimizer.set_compression("onebit" if number == 10 else {"*.bias": "none", "*": "int8"})
        batch = batch_of(0, rank)
        losses.append(nn.functional.cross_entropy(model(batch[0]), batch[1]).item())
        step(model, optimizer, batch)
    assert losses[29] < losses[19] < losses[9] < losses[0]


@pytest.mark.parametrize("before", ["onebit", "topk(ratio=0.05)", "fp16"])
def test_the_hook_of_ddp_loses_nothing(before, gloo, rank, size):
    model = Linear()
    state = ddp_state(before, model.named_parameters())
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(state, ddp_hook)
    optimizer, weight = torch.optim.SGD(model.parameters(), lr=1.0), model.weight

    def take(number):
        optimizer.zero_grad()
        wrapped(gradient_of(number, rank, weight.shape)).backward()
        optimizer.step()

    for number in range(STEPS):
        take(number)
    state.set_compression("int8")
    take(STEPS)
    if before != "fp16":
        torch.testing.assert_close(
            -weight.detach().double(), mean_of_all(0, STEPS + 1, size, weight.shape), rtol=0, atol=2e-4
        )
    take(STEPS + 1)
    if size > 1:
        assert hvd.plans()["allreduce.weight"].codec == "int8"
    with pytest.raises(hvd.NotAvailableError, match="momentum"):
        state.set_compression("dgc(ratio=0.01)")

"""set_compression: another codec from one step on, of which nothing is lost."""

import casync.torch as hvd
import numpy as np
import pytest
import torch
from casync.torch.ddp import ddp_hook, ddp_state
from torch import nn

from support.training import batch_of, make_model, new_session, step, wrap

KEEPING = ["onebit", "topk(ratio=0.05)", "powersgd(rank=2, start_step=2)", "threelc", "int4"]
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


@pytest.mark.parametrize("after", ["none", "fp16", "onebit(feedback_decay=0.75)", "powersgd(rank=2, start_step=0)"])
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
        assert hvd.plans()["allreduce.w0"].codec.startswith(after.partition("(")[0])


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
    (weight,) = parameters = weights((90, 80))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, gradient):
            return (self.weight * gradient).sum()

    model = Model()
    state = ddp_state(before, model.named_parameters())
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(parameters, lr=1.0)

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

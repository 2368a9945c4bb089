"""covap: each gradient goes in one of several steps, and waits in the others. Compared with the same in float64."""

import copy
import math

import casync.numpy as numpy_hvd
import casync.torch as hvd
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import casync
from casync.errors import NotAvailableError
from casync.plan.plans import GradientPlan, write_plans
from casync.session import default
from support.replicas import assert_same, assert_same_bits, assert_same_everywhere
from support.training import batch_of, make_model, new_session, step

NUMELS = (5000, 9000, 20_000, 4096, 12_000, 7000)
SMALL = 4095  # below which a gradient goes in every step


class Waiting:
    """All ranks' residuals of one gradient, in float64. `codec` gives what is decoded of what is sent."""

    def __init__(self, shape, size, codec, period=1, offset=0, partitions=1, coefficient=lambda step: 1.0):
        self.coefficient = coefficient
        self.residuals = np.zeros((size, *shape))
        self.period, self.offset, self.steps, self.codec = period, offset, 0, codec
        numel = math.prod(shape)
        ends = [numel * (number + 1) // partitions for number in range(partitions)]
        partition = np.searchsorted(ends, np.arange(numel), side="right")
        turns = partition * period // partitions if partitions >= period else 0 * partition
        self.turns = turns.reshape(shape)

    def mean_of(self, contributions):
        """Return the result of a step in which the ranks give these gradients."""
        self.residuals = self.coefficient(self.steps) * self.residuals + contributions
        goes = self.turns == (self.steps - self.offset) % self.period
        self.steps += 1
        sent = np.stack([np.where(goes, self.codec(one), 0) for one in self.residuals])
        self.residuals -= sent
        return sent.mean(0)


def waiting_for(name, shape, size, codec=lambda values: values, **terms):
    """The residuals of a gradient that has a plan, and has made no step yet here."""
    if size == 1:
        return Waiting(shape, size, lambda values: values)
    plan = hvd.plans()[f"allreduce.{name}"]
    return Waiting(shape, size, codec, plan.period, plan.offset, plan.partitions, **terms)


def onebit_of_rows(values):
    """What `onebit` makes of a matrix whose rows are its groups: the means of those that are negative, and not."""
    up = values >= 0
    highs = np.array([row[is_up].mean() if is_up.any() else 0 for row, is_up in zip(values, up, strict=True)])
    lows = np.array([row[~is_up].mean() if (~is_up).any() else 0 for row, is_up in zip(values, up, strict=True)])
    return np.where(up, highs[:, None], lows[:, None])


def of_all_ranks(rng, size, numel):
    return rng.normal(size=(size, numel)).astype(np.float32)


def left_of(name, numel):
    """Return the sum over all ranks of what each holds back of a gradient."""
    kept, tensor = default.session().codec_states, f"allreduce.{name}"
    own = np.zeros(numel)
    if tensor in kept.residual_names():
        own += kept.residual(tensor)
    if tensor in kept.state_names():
        for array in kept.state(tensor)["arrays"].values():
            own += array["values"] if array["pending"] else 0
    return hvd.allreduce(torch.from_numpy(own), op=hvd.Sum, name=f"left.{name}").numpy()


@pytest.mark.parametrize("interval", [2, 3, 4])
@pytest.mark.parametrize(("codec", "tolerance"), [("none", 1e-5), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_a_gradient_goes_in_one_step_of_several_with_all_that_waited(rng, rank, size, codec, tolerance, interval):
    compression = f"covap({codec}, interval={interval})"
    waiting = {}
    for _ in range(2 * interval + 3):
        for number, numel in enumerate((*NUMELS, SMALL)):
            given = of_all_ranks(rng, size, numel)
            result = hvd.allreduce(torch.from_numpy(given[rank].copy()), name=f"w{number}", compression=compression)
            if number not in waiting:
                waiting[number] = waiting_for(f"w{number}", (numel,), size)
            one = waiting[number]
            np.testing.assert_allclose(result.numpy(), one.mean_of(given), rtol=tolerance, atol=tolerance)
            assert_same_everywhere(result)
    if size == 1:
        return
    plans = [hvd.plans()[f"allreduce.w{number}"] for number in range(len(NUMELS) + 1)]
    assert {plan.codec for plan in plans[:-1]} == {codec}
    assert {plan.period for plan in plans[:-1]} == {interval}
    assert {plan.offset for plan in plans[:-1]} == set(range(interval))
    assert (plans[-1].period, plans[-1].codec) == (1, "none"), "it is small"
    assert f"in one step of {interval}" in plans[0].reason
    for number, numel in enumerate(NUMELS):
        left = left_of(f"w{number}", numel)
        np.testing.assert_allclose(left, waiting[number].residuals.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("interval", [1, 2, 3, 8])
def test_onebit_keeps_its_error_with_what_waits(rng, rank, size, interval):
    shape, waiting = (10, 1000), {}
    for _ in range(2 * interval + 2):
        for number in range(3):
            given = rng.normal(size=(size, *shape)).astype(np.float32)
            tensor = torch.from_numpy(given[rank].copy())
            compression = f"covap(onebit, interval={interval})"
            result = hvd.allreduce(tensor, name=f"w{number}", compression=compression, topology="direct")
            if number not in waiting:
                waiting[number] = waiting_for(f"w{number}", shape, size, onebit_of_rows)
            np.testing.assert_allclose(result.numpy(), waiting[number].mean_of(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("interval", [2, 3])
@pytest.mark.parametrize("codec", ["none", "fp16", "onebit"])
def test_what_waits_is_multiplied_by_the_coefficient_in_every_step(rng, rank, size, codec, interval):
    """Section III-D of the paper: min(init + floor(step / ascend_steps) * ascend_range, 1)."""
    shape, waiting = (10, 1000), {}
    compression = f"covap({codec}, interval={interval}, init=0.25, ascend_steps=4, ascend_range=0.5)"
    tolerance = 2e-3 if codec == "fp16" else 1e-4
    for _ in range(12):
        for number in range(3):
            given = rng.normal(size=(size, *shape)).astype(np.float32)
            tensor = torch.from_numpy(given[rank].copy())
            result = hvd.allreduce(tensor, name=f"w{number}", compression=compression, topology="direct")
            if number not in waiting:
                decoded = onebit_of_rows if codec == "onebit" else lambda values: values
                rising = {"coefficient": lambda step: min(0.25 + step // 4 * 0.5, 1.0)} if size > 1 else {}
                waiting[number] = waiting_for(f"w{number}", shape, size, decoded, **rising)
            np.testing.assert_allclose(result.numpy(), waiting[number].mean_of(given), rtol=tolerance, atol=tolerance)
    if size > 1:
        plan = hvd.plans()["allreduce.w0"]
        assert (plan.init, plan.ascend_steps, plan.ascend_range) == (0.25, 4, 0.5)


@pytest.mark.parametrize("interval", [2, 4, 8])
@pytest.mark.parametrize("init", [0.0, 0.5, 0.8])
def test_of_a_constant_gradient_the_part_arrives_that_the_coefficient_says(several, interval, init):
    compression = f"covap(none, interval={interval}, init={init}, ascend_steps=1000)"
    gradient = torch.ones(5000)
    arrived = torch.zeros(5000)
    for turn in range(3):
        for _ in range(interval):
            result = hvd.allreduce(gradient, name="w", compression=compression)
            arrived += result if turn else 0  # the first turn has no gradient of a turn before
    expected = (1 - init**interval) / (interval * (1 - init))
    np.testing.assert_allclose(arrived.numpy() / (2 * interval), expected, rtol=1e-6)


@pytest.mark.parametrize("codec", ["none", "onebit", "topk(ratio=0.1)", "adacomp", "onebit(feedback_bits=8)"])
def test_what_was_delivered_and_what_is_left_is_the_sum_of_all(rng, rank, size, codec):
    compression = f"covap({codec}, interval=3)"
    total, delivered = (np.zeros((len(NUMELS), max(NUMELS))) for _ in range(2))
    for _ in range(10):
        for number, numel in enumerate(NUMELS):
            given = of_all_ranks(rng, size, numel)
            total[number, :numel] += given.sum(0)
            tensor = torch.from_numpy(given[rank].copy())
            result = hvd.allreduce(tensor, op=hvd.Sum, name=f"w{number}", compression=compression)
            delivered[number, :numel] += result.numpy()
    for number, numel in enumerate(NUMELS):
        error = delivered[number, :numel] + left_of(f"w{number}", numel) - total[number, :numel]
        assert np.sqrt((error**2).mean()) < (0.3 if "bits" in codec else 1e-3), "the rounding of residuals in 8 bits"


@pytest.mark.parametrize("codec", ["onebit", "efsignsgd", "topk(ratio=0.1)"])
def test_a_codec_gets_what_waited_as_one_gradient(rng, rank, several, size, codec):
    interval = 3
    always, covap = f"always({codec})", f"always(covap({codec}, interval={interval}))"
    shape = (60, 80)
    for number in range(4):
        waits = torch.zeros(shape)
        for step_number in range(4 * interval):
            given = torch.from_numpy(rng.integers(-8, 9, (size, *shape)).astype(np.float32))[rank]
            waits += given
            result = hvd.allreduce(given, name=f"w{number}", compression=covap, topology="direct")
            if step_number % interval != hvd.plans()[f"allreduce.w{number}"].offset:
                assert not result.any()
                continue
            expected = hvd.allreduce(waits, name=f"p{number}", compression=always, topology="direct")
            torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
            waits = torch.zeros(shape)


def test_each_step_sends_about_its_part_of_the_bytes(rank, several, size):
    """On the wire too. As many gradients as are a multiple of ranks and steps leave nothing over."""
    interval, numel = 4, 30_000
    count = interval * size

    def sent(compression):
        found = []
        for _ in range(2 * interval):
            before = hvd.counters()["sent_bytes"]
            handles = [
                hvd.allreduce_async(torch.ones(numel), name=f"{compression}.{number}", compression=compression)
                for number in range(count)
            ]
            for handle in handles:
                hvd.synchronize(handle)
            hvd.barrier()
            found.append(hvd.counters()["sent_bytes"] - before)
        return found[interval:]

    waits, plain = sent(f"covap(none, interval={interval})"), sent("none")
    assert max(waits) < 1.05 * min(waits), waits
    assert sum(waits) == pytest.approx(sum(plain) / interval, rel=0.05)
    offsets = [hvd.plans()[f"allreduce.covap(none, interval={interval}).{number}"].offset for number in range(count)]
    assert [offsets.count(offset) for offset in range(interval)] == [size] * interval


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_each_step_sends_its_part_of_one_large_gradient(rng, several, size, codec):
    numel, interval = (1_000_000, 4) if codec == "none" else (12_000_000, 3)
    found, delivered = [], np.zeros(numel, bool)
    for number in range(interval):
        before = hvd.counters()["sent_bytes"]
        tensor = torch.ones(numel)
        result = hvd.allreduce(tensor, name="w", compression=f"covap({codec}, interval={interval})", topology="ps")
        hvd.barrier()
        found.append(hvd.counters()["sent_bytes"] - before)
        comes = result.numpy() != 0
        assert not (comes & delivered).any(), "each value goes in one step"
        assert (np.diff(np.flatnonzero(comes)) == 1).all(), "they are neighbours"
        np.testing.assert_allclose(result.numpy()[comes], number + 1, rtol=1e-5)
        delivered |= comes
    assert delivered.all()
    assert hvd.plans()["allreduce.w"].partitions >= interval
    assert max(found) < (1.0 + 2 * interval / hvd.plans()["allreduce.w"].partitions) * min(found), found


def test_metrics_predict_for_a_step_what_goes_in_it(several):
    for _ in range(7):
        hvd.allreduce(torch.ones(50_000), name="w", compression="covap(none, interval=3)")
    plan, metrics = hvd.plans()["allreduce.w"], hvd.metrics().gradients["allreduce.w"]
    assert (plan.offset, metrics.operations) == (0, 7)
    whole = 3 if plan.partitions < 3 else 7 / 3  # gradients that were sent
    assert metrics.predicted_seconds == pytest.approx(whole * plan.predicted_s, rel=0.1, abs=1e-8)


# --- training ---------------------------------------------------------------------------------------------------------


def gradients_of(model, steps, rank):
    """By name, of this rank's batch of a step, in float64."""
    images, labels = batch_of(steps, rank)
    model.zero_grad()
    F.cross_entropy(model(images.double()), labels).backward()
    return {name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}


def train_alone(model, steps, size, momentum, prefix=""):
    """Train as all ranks together, by the plans that they have."""
    model = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    waiting = {name: waiting_for(prefix + name, tuple(p.shape), size) for name, p in model.named_parameters()}
    for number in steps:
        of_ranks = [gradients_of(model, number, rank) for rank in range(size)]
        for name, parameter in model.named_parameters():
            mean = waiting[name].mean_of(np.stack([gradients[name] for gradients in of_ranks]))
            parameter.grad = torch.from_numpy(mean)
        optimizer.step()
    return model.float()


def wrap(model, compression, momentum=0.9, prefix="", **arguments):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    names = [(prefix + name, parameter) for name, parameter in model.named_parameters()]
    return hvd.DistributedOptimizer(optimizer, names, compression=compression, **arguments)


@pytest.mark.parametrize(
    ("compression", "tolerance"),
    [("covap(none, interval=2)", 1e-4), ("covap(none, interval=4)", 1e-4), ("covap(fp16, interval=3)", 2e-3)],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimizer_trains_as_all_ranks_in_one_process(rank, size, compression, tolerance, momentum):
    first = make_model()
    model = copy.deepcopy(first)
    optimizer = wrap(model, compression, momentum)
    for number in range(11):
        step(model, optimizer, batch_of(number, rank))
    assert_same(model, train_alone(first, range(11), size, momentum), rtol=tolerance, atol=tolerance)


def test_it_is_stable_while_interval_times_rate_times_curvature_is_below_two(several):
    """Of a quadratic with curvature 1: all that waited was computed at one place, and is one step from there."""
    rate = 0.4

    def after_ten_arrivals(interval):
        x = torch.ones(5000)
        for _ in range(10 * interval):
            x -= rate * hvd.allreduce(
                x.clone(), name=f"every{interval}", compression=f"covap(none, interval={interval})"
            )
        return float(x.abs().max())

    assert after_ten_arrivals(4) < 0.01
    assert after_ten_arrivals(6) > 10


def test_the_setting_does_the_same(rank, size):
    new_session(compression="covap(none, interval=2)")
    first = make_model()
    model = copy.deepcopy(first)
    optimizer = wrap(model, hvd.Compression.none)
    for number in range(5):
        step(model, optimizer, batch_of(number, rank))
    if size > 1:
        assert [hvd.plans()[f"allreduce.{number}.weight"].period for number in (0, 2, 4)] == [2, 2, 1]
    assert_same(model, train_alone(first, range(5), size, 0.9))


def test_two_optimizers_wait_apart(rank, size):
    first, second = make_model(0), make_model(1)
    models = copy.deepcopy(first), copy.deepcopy(second)
    one = wrap(models[0], "covap(none, interval=2)", prefix="a.")
    other = wrap(models[1], "covap(fp16, interval=3)", prefix="b.")
    for number in range(9):
        step(models[0], one, batch_of(number, rank))
        if number % 2:
            step(models[1], other, batch_of(number, rank))
    assert_same(models[0], train_alone(first, range(9), size, 0.9, "a."), rtol=1e-4, atol=1e-4)
    assert_same(models[1], train_alone(second, range(1, 9, 2), size, 0.9, "b."), rtol=2e-3, atol=2e-3)


def test_the_hook_of_ddp_does_the_same(gloo, rank, size):
    first = make_model()
    model = copy.deepcopy(first)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    state = hvd.ddp_state(compression="covap(none, interval=3)", named_parameters=model.named_parameters())
    ddp.register_comm_hook(state, hvd.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for number in range(10):
        step(ddp, optimizer, batch_of(number, rank))
    if size > 1:
        assert [hvd.plans()[f"allreduce.{number}.weight"].period for number in (0, 2, 4)] == [3, 3, 1]
    assert_same(model, train_alone(first, range(10), size, 0.9), rtol=1e-4, atol=1e-4)


def test_rules_give_some_parameters_an_interval_and_others_none(rank, size):
    first = make_model()
    model = copy.deepcopy(first)
    rules = {"*.bias": "none", "4.weight": "covap(none, interval=2)", "0.*": "covap(none, interval=3)", "*": "none"}
    optimizer = wrap(model, rules)
    for number in range(8):
        step(model, optimizer, batch_of(number, rank))
    if size > 1:
        periods = {name.removeprefix("allreduce."): plan.period for name, plan in hvd.plans().items()}
        assert periods["4.weight"] == 2, "named in full, so whatever its size"
        assert periods["0.weight"] == 3
        assert {periods[name] for name in ("2.weight", "0.bias", "2.bias", "4.bias")} == {1}
    assert_same(model, train_alone(first, range(8), size, 0.9), rtol=1e-4, atol=1e-4)


def test_a_rule_by_shape_leaves_vectors_alone(several):
    rules = {"* where ndim == 1": "none", "*": "covap(none, interval=2)"}
    model = nn.Sequential(nn.Linear(3, 5000))
    optimizer = wrap(model, rules)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    periods = {name: plan.period for name, plan in hvd.plans().items()}
    assert periods == {"allreduce.0.weight": 2, "allreduce.0.bias": 1}


def test_numpy_arrays_wait_too(rng, rank, size):
    waiting = None
    for _ in range(5):
        given = of_all_ranks(rng, size, 6000)
        result = numpy_hvd.allreduce(given[rank].copy(), name="w", compression="covap(none, interval=2)")
        waiting = waiting or waiting_for("w", (6000,), size)
        np.testing.assert_allclose(result, waiting.mean_of(given), rtol=1e-5, atol=1e-5)


# --- going on, and going on otherwise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "fp16", "onebit"])
def test_resumed_within_an_interval_is_uninterrupted(rank, codec):
    """In deterministic sessions: else offsets follow the order in which gradients come."""
    compression = f"always(covap({codec}, interval=4))"
    new_session(deterministic=True)
    model = make_model()
    optimizer = wrap(model, compression)
    for number in range(6):
        step(model, optimizer, batch_of(number, rank))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for number in range(6, 13):
        step(model, optimizer, batch_of(number, rank))
    new_session(deterministic=True)
    resumed = make_model(1)
    resumed.load_state_dict(saved[0])
    optimizer = wrap(resumed, compression)
    optimizer.load_state_dict(saved[1])
    for number in range(6, 13):
        step(resumed, optimizer, batch_of(number, rank))
    assert_same_bits(resumed, model)


def test_a_saved_job_goes_on_with_its_offsets(tmp_path, rank, size):
    folder = hvd.broadcast_object(str(tmp_path / "state"), 0)
    names = [f"w{number}" for number in range(8)]

    def go(order, steps):
        results = {}
        for number in steps:
            for name in order:
                values = torch.full((5000,), float(number + rank + len(name)))
                results[name, number] = hvd.allreduce(values, name=name, compression="covap(none, interval=4)")
        return results

    go(names, range(5))
    casync.save_state(folder)
    plans, expected = hvd.plans(), go(names, range(5, 11))
    new_session()
    casync.load_state(folder)
    found = go(names[::-1], range(5, 11))
    assert hvd.plans() == plans
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    if size > 1:
        new_session()
        casync.load_state(folder)
        hvd.allreduce(torch.ones(5000), name="w0", compression="none")
        assert hvd.plans()["allreduce.w0"].period == 1, "the program says that it goes in every step"


def test_deterministic_offsets_follow_from_names(several):
    def offsets(order):
        new_session(deterministic=True)
        for number in order:
            hvd.allreduce(torch.ones(5000), name=f"layers.{number}", compression="covap(none, interval=3)")
        return {name: plan.offset for name, plan in hvd.plans().items()}

    found = offsets(range(12))
    assert found == offsets(reversed(range(12)))
    assert set(found.values()) == {0, 1, 2}


def test_a_plan_file_gives_the_offsets(tmp_path, rank, several):
    names = [f"w{number}" for number in range(5)]
    for name in names:
        hvd.allreduce(torch.ones(5000), name=name, compression="covap(fp16, interval=3)")
    plans, path = hvd.plans(), hvd.broadcast_object(str(tmp_path / "plan.json"), 0)
    if rank == 0:
        write_plans(path, plans)
    hvd.barrier()
    new_session(plan_file=path)
    for name in reversed(names):
        hvd.allreduce(torch.ones(5000), name=name, compression="covap(fp16, interval=3)")
    assert hvd.plans() == plans


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_ranks_that_have_joined_hold_nothing_back(rank, several, size, codec):
    compression = f"always(covap({codec}, interval=2))"
    for number in range(1 if rank == 0 else 5):
        result = hvd.allreduce(torch.ones(5000), name="w", op=hvd.Sum, compression=compression, topology="ps")
        expected = {0: size, 1: 0, 3: 0}.get(number, 2 * (size - 1))  # two steps of all but rank 0
        torch.testing.assert_close(result, torch.full((5000,), float(expected)))
    hvd.join()


def test_a_gradient_that_changes_to_every_step_brings_what_waited(rank, size, several):
    total, delivered = 0.0, 0.0
    for number in range(9):
        compression = "covap(none, interval=4)" if number < 6 else "none"
        result = hvd.allreduce(torch.full((5000,), number + rank + 1.0), name="w", op=hvd.Sum, compression=compression)
        total += sum(number + other + 1.0 for other in range(size))
        delivered += float(result[0])
        assert bool((result == result[0]).all())
    assert delivered == total


@pytest.mark.parametrize("offset", [0, 3])
def test_what_waits_goes_on_where_another_plan_follows(tmp_path, several, rank, offset):
    given = GradientPlan("ps", "none", until=3, period=4, offset=offset)
    if rank == 0:
        write_plans(tmp_path / "plan.json", {"allreduce.w": given})
    path = numpy_hvd.broadcast_object(str(tmp_path / "plan.json"))
    new_session(plan_file=path)
    delivered = sum(hvd.allreduce(torch.ones(5000), name="w", compression="auto") for _ in range(12))
    assert not left_of("w", 5000).any()
    np.testing.assert_allclose(delivered.numpy(), 12)


def test_the_coefficient_cannot_begin_to_rise_later():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for late in ("covap(fp16, interval=4, init=0.5)", {"0.*": "covap(fp16, init=0.5)", "*": "none"}):
        with pytest.raises(NotAvailableError, match="coefficient rises with the steps of a gradient from the first"):
            optimizer.set_compression(late)
    optimizer.set_compression("covap(fp16, interval=4)")

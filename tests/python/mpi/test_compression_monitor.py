"""A CompressionMonitor: what it measures is right, and what it does loses nothing, and is the same on all ranks."""

import logging
import math

import casync.torch as hvd
import numpy as np
import pytest
import torch
from torch import nn

import casync
import casync.metrics
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.observe.compression_monitor import places
from casync.session import default
from support.files import ROOT
from support.training import batch_of, make_model, new_session, step

DIVERGING = str(ROOT / "tests/compll/broken/not_contractive.cll")
SHAPE = (64, 128)
NUMEL = math.prod(SHAPE)
EAGER = {"every": 1, "residual_bound": 3.0, "rises": 2}


class Job:
    """An optimizer of two parameters, `a` and `b`, whose gradients a test gives. The parameters stay as they are."""

    def __init__(self, compression, monitor=None, names="ab", **arguments):
        self.parameters = {name: nn.Parameter(torch.zeros(SHAPE)) for name in names}
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.parameters.values(), lr=0.0),
            named_parameters=self.parameters.items(),
            compression=compression,
            monitor=monitor,
            **arguments,
        )

    def step(self, **gradients):
        """One step with these gradients of this rank; what they were reduced to."""
        self.optimizer.zero_grad()
        loss = sum((self.parameters[name] * torch.tensor(one)).sum() for name, one in gradients.items())
        loss.backward()
        self.optimizer.step()
        return {name: self.parameters[name].grad.numpy().astype(np.float64) for name in gradients}

    def held_back(self, name):
        """The sum over the ranks of what is kept of a parameter's gradients."""
        mine = default.session().codec_states.held_back(f"allreduce.{name}")
        everyones = hvd.allgather_object(np.zeros(NUMEL) if mine is None else mine.astype(np.float64))
        return np.sum(everyones, axis=0).reshape(SHAPE)


def numbers(rng, size, exact=False):
    """Gradients of all ranks. `exact`: such that their mean has few bits, and any sum of them too."""
    if exact:
        return [size * rng.integers(-4, 5, SHAPE).astype(np.float32) for _ in range(size)]
    return [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(size)]


def found(name):
    return hvd.metrics().compression[f"allreduce.{name}"]


def codecs():
    """The codec of each gradient in its last step, which is the same on all ranks."""
    mine = {name: hvd.plans()[f"allreduce.{name}"].codec for name in "ab"}
    assert all(theirs == mine for theirs in hvd.allgather_object(mine))
    return mine


def squares(values):
    return float(np.square(np.asarray(values, np.float64)).sum())


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    "more", [{}, {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum}], ids=["", "predivide", "sum"]
)
@pytest.mark.parametrize("codec", ["onebit", "topk(ratio=0.1)", "int8", "fp16"])
def test_numbers_are_those_of_numpy(codec, more, rng, rank, size):
    job = Job(codec, hvd.CompressionMonitor(every=1, sample=NUMEL), **more)
    usual = 0.0
    for _ in range(3):
        own = numbers(rng, size)
        true = np.sum(own, axis=0, dtype=np.float64) / (1 if "op" in more else size)
        result = job.step(a=own[rank], b=own[rank])["a"]
        expected = squares(result - true) / squares(true)
        assert found("a").error == pytest.approx(expected, rel=1e-4) and expected > 1e-8
        mine = default.session().codec_states.held_back("allreduce.a")
        if codec in ("int8", "fp16"):
            assert mine is None and found("a").residual == 0
            continue
        kept = sum(hvd.allgather_object(squares(mine))) * more.get("gradient_predivide_factor", 1.0) ** 2
        usual = max(usual, sum(map(squares, own)))
        assert found("a").residual == pytest.approx(math.sqrt(kept / usual), rel=1e-4)
    metrics = hvd.metrics()
    assert found("a").gradient_bytes == 4 * NUMEL and found("a").codec == codec
    ratio = {"onebit": 25, "topk(ratio=0.1)": 5, "int8": 3.9, "fp16": 2}[codec]
    assert found("b").ratio == pytest.approx(ratio, rel=0.2) == pytest.approx(metrics.compression_ratio, rel=0.2)
    assert not [name for name in {**metrics.gradients, **hvd.plans()} if "watch" in name], "those are CaSync's own"


@pytest.mark.usefixtures("several")
def test_prometheus_has_them(rng, rank, size):
    pytest.importorskip("prometheus_client")
    job = Job("onebit", hvd.CompressionMonitor())
    job.step(a=numbers(rng, size)[rank])
    text = casync.metrics.prometheus()
    for name in ("error", "residual", "ratio"):
        (line,) = [one for one in text.splitlines() if one.startswith(f"casync_compression_{name}{{") and ".a" in one]
        assert float(line.split()[-1]) == pytest.approx(getattr(found("a"), name))


@pytest.mark.usefixtures("several")
def test_a_sample_is_of_the_elements_that_it_says(rng, rank, size):
    job = Job("int8", hvd.CompressionMonitor(every=1, sample=100))
    for number in (1, 2, 3):
        own = numbers(rng, size)
        true, result = np.mean(own, axis=0, dtype=np.float64), job.step(a=own[rank])["a"]
        first, stride = places(NUMEL, 100, number)
        some = np.s_[first::stride]
        expected = squares((result - true).reshape(-1)[some]) / squares(true.reshape(-1)[some])
        assert found("a").error == pytest.approx(expected, rel=1e-4) and found("a").step == number


@pytest.mark.usefixtures("several")
def test_passes_and_a_loss_scale_change_nothing(rng, rank, size):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    job = Job("onebit", hvd.CompressionMonitor(every=1, sample=NUMEL), grad_scaler=scaler, backward_passes_per_step=2)
    usual = 0.0
    for _ in range(3):
        parts = numbers(rng, size), numbers(rng, size)
        job.optimizer.zero_grad()
        for part in parts:
            scaler.scale((job.parameters["a"] * torch.tensor(part[rank])).sum()).backward()
        job.optimizer.synchronize()
        with job.optimizer.skip_synchronize():
            scaler.step(job.optimizer)
        scaler.update()
        own = np.sum(np.array(parts, np.float64), axis=0)
        result = job.parameters["a"].grad.numpy()  # without the scale: the scaler has taken it off
        assert found("a").error == pytest.approx(
            squares(result - own.mean(axis=0)) / squares(own.mean(axis=0)), rel=1e-4
        )
        kept = sum(hvd.allgather_object(squares(default.session().codec_states.held_back("allreduce.a"))))
        usual = max(usual, squares(own))
        assert found("a").residual == pytest.approx(math.sqrt(kept / usual), rel=1e-4)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("fallback", ["bf16", "fp16"])
def test_a_codec_that_diverges_is_left_in_one_step_and_no_mass_is_lost(fallback, rng, rank, size, caplog):
    job = Job({"a": DIVERGING, "b": "onebit"}, hvd.CompressionMonitor(**EAGER, fallback=fallback))
    given, delivered, seen = np.zeros(SHAPE), np.zeros(SHAPE), []
    with caplog.at_level(logging.INFO, "casync"):
        for _ in range(9):
            own = numbers(rng, size, exact=True)
            given += np.sum(own, axis=0, dtype=np.float64)
            delivered += size * job.step(a=own[rank], b=own[rank])["a"]
            seen.append(codecs()["a"])
            scale = np.abs(job.held_back("a")).max() + np.abs(delivered).max()
            np.testing.assert_allclose(delivered + job.held_back("a"), given, rtol=0, atol=3e-6 * scale)
    switch = seen.index("none")
    assert 2 <= switch < 6 and all("not_contractive" in codec for codec in seen[:switch])
    assert seen[switch:] == ["none", *[fallback] * (8 - switch)] and codecs()["b"] == "onebit"
    assert not job.held_back("a").any(), "all has been sent"
    np.testing.assert_array_equal(np.round(delivered), given)
    assert "holds back" in found("a").fault and not found("b").fault
    assert found("a").error < 1e-4 and found("a").residual == 0
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(told) == (rank == 0)
    assert all(f"step {switch}: codec not_contractive" in one and f"in {fallback} from now on" in one for one in told)
    lines = [one for one in caplog.records if one.name == "casync.compression"]
    assert len(lines) == (9 if rank == 0 else 0)


@pytest.mark.usefixtures("several")
def test_without_a_fallback_there_is_one_warning(rng, rank, size, caplog):
    job = Job({"a": DIVERGING, "b": "int8"}, hvd.CompressionMonitor(**EAGER))
    for _ in range(7):
        own = numbers(rng, size)
        job.step(a=own[rank], b=own[rank])
    assert "not_contractive" in codecs()["a"] and found("a").fault
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == (rank == 0)
    assert all('give it another codec, or have the monitor do so: fallback="bf16"' in one for one in warnings)


@pytest.mark.usefixtures("several")
def test_an_error_beyond_its_bound_is_told(rng, rank, size):
    job = Job({"a": "terngrad(bits=2)", "b": "int8"}, hvd.CompressionMonitor(every=1, error_bound=0.1, fallback="bf16"))
    for _ in range(3):
        own = numbers(rng, size)
        job.step(a=own[rank], b=own[rank])
    assert "vNMSE" in found("a").fault and codecs() == {"a": "bf16", "b": "int8"}


@pytest.mark.usefixtures("several")
def test_nan_that_a_codec_makes_is_its_fault(rng, rank, size):
    """This one divides by the largest magnitude, also where that is 0."""
    broken = str(ROOT / "tests/compll/broken/zero_range.cll")
    job = Job({"a": broken, "b": "int8"}, hvd.CompressionMonitor(every=1, sample=3, fallback="bf16"))
    for zeros in (False, True, False, False):
        own = numbers(rng, size)[rank]
        own[:32] *= not zeros
        result = job.step(a=own, b=own)
        assert np.isnan(result["a"]).any() == zeros and not np.isnan(result["b"]).any()
        assert bool(found("a").fault) == (codecs()["a"] in ("none", "bf16") or zeros)
    assert codecs() == {"a": "bf16", "b": "int8"} and "NaN or infinity" in found("a").fault


def losses(compression, monitor, rank, steps=60):
    new_session(min_numel=0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, monitor=monitor)
    seen = []
    labels = torch.randn(20, 4, generator=torch.Generator().manual_seed(7))
    for number in range(steps):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * number + rank))
        step(model, optimizer, (inputs, (inputs @ labels).argmax(1)))
        with torch.no_grad():
            inputs = torch.randn(256, 20, generator=torch.Generator().manual_seed(1))
            seen.append(float(nn.functional.cross_entropy(model(inputs), (inputs @ labels).argmax(1))))
    return seen


@pytest.mark.usefixtures("several")
def test_a_training_goes_on_after_a_fall_back(rank):
    right = losses("none", None, rank)[-1]
    alone = losses(DIVERGING, None, rank)[-1]
    assert not alone < 10 * right, "this codec diverges"
    helped = losses(DIVERGING, hvd.CompressionMonitor(**EAGER, fallback="bf16"), rank)
    assert helped[-1] < 1.1 * right, helped
    assert all(one.fault for one in hvd.metrics().compression.values())


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("codec", ["int8", "onebit", "topk(ratio=0.05)", "powersgd(rank=2, start_step=5)", "tbq"])
def test_a_healthy_codec_is_not_flagged(codec, rank, caplog):
    losses(codec, hvd.CompressionMonitor(every=5, fallback="bf16"), rank)
    every = hvd.metrics().compression.values()
    assert every and not any(one.fault for one in every)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.usefixtures("several")
def test_nan_on_one_rank_is_no_fault_and_does_not_split_the_ranks(rng, rank, size):
    job = Job({"a": DIVERGING, "b": "onebit"}, hvd.CompressionMonitor(**EAGER, sample=50, fallback="bf16"))
    for number in range(10):
        own = numbers(rng, size)
        if number in (1, 2) and rank == size - 1:
            own[rank][3, 5] = math.nan
        result = job.step(a=own[rank], b=own[rank])
        assert np.isnan(result["b"]).any() == (number in (1, 2)) and codecs()["b"] == "onebit"
        if number in (1, 2):
            assert math.isnan(found("b").error) and math.isnan(found("b").residual) and not found("a").fault
    assert found("a").fault and codecs()["a"] == "bf16" and not found("b").fault


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("way", ["each rank's own", "of rank 0, by all", "of rank 0, broadcast", "save_state"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_a_fall_back_outlives_a_restart(way, late, rng, rank, size, tmp_path_factory):
    job = Job({"a": DIVERGING, "b": "onebit"}, hvd.CompressionMonitor(**EAGER, fallback="bf16"))
    own = numbers(rng, size, exact=True)
    while not found_fault():
        job.step(a=own[rank], b=own[rank])
    if late:
        job.step(a=own[rank], b=own[rank])
        job.step(a=own[rank], b=own[rank])
    held_back = job.held_back("a")
    state = job.optimizer.state_dict()
    folder = hvd.broadcast_object(str(tmp_path_factory.mktemp("state")), 0)
    casync.save_state(folder)
    of_rank_0 = hvd.broadcast_object(state, 0)
    new_session()
    job = Job({"a": DIVERGING, "b": "onebit"})
    if way == "save_state":
        casync.load_state(folder)
    elif way == "of rank 0, broadcast":
        if rank == 0:
            job.optimizer.load_state_dict(of_rank_0)
        hvd.broadcast_optimizer_state(job.optimizer, 0)
    else:
        job.optimizer.load_state_dict(state if way == "each rank's own" else of_rank_0)
    if way in ("each rank's own", "save_state"):
        np.testing.assert_array_equal(job.held_back("a"), held_back)
    before = job.held_back("a")
    result = job.step(a=own[rank], b=own[rank])["a"]
    expected = (np.sum(own, axis=0, dtype=np.float64) + before) / size
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert codecs()["a"] == ("bf16" if late and "broadcast" not in way else "none"), "as if it had not been interrupted"
    job.step(a=own[rank], b=own[rank])
    assert codecs() == {"a": "bf16", "b": "onebit"} and not job.held_back("a").any()
    job.optimizer.load_state_dict({**state, "casync": {**state["casync"], "fallbacks": {}, "unsent": []}})
    job.step(a=own[rank], b=own[rank])
    assert "not_contractive" in codecs()["a"], "the program's codec is back where the state has no fallback"


def found_fault():
    return any(one.fault for one in hvd.metrics().compression.values())


@pytest.mark.usefixtures("several")
def test_a_rank_that_had_joined_learns_of_a_fall_back(rng, rank, size):
    job = Job({"a": DIVERGING, "b": "onebit"}, hvd.CompressionMonitor(**EAGER, fallback="bf16"))
    own = numbers(rng, size, exact=True)
    steps = 2 if rank == 0 else 12
    given, delivered = np.zeros(SHAPE), np.zeros(SHAPE)
    for number in range(12):
        given += np.sum(own[0 if number < 2 else 1 :], axis=0, dtype=np.float64)
        if number < steps:
            delivered += size * job.step(a=own[rank], b=own[rank])["a"]
    hvd.join()
    delivered = hvd.broadcast_object(delivered, 1)
    for _ in range(2):
        given += np.sum(own, axis=0, dtype=np.float64)
        delivered += size * job.step(a=own[rank], b=own[rank])["a"]
        assert not job.held_back("a").any()
    assert codecs()["a"] == "bf16"
    np.testing.assert_allclose(delivered, given, rtol=0, atol=1e-4 * np.abs(given).max())


@pytest.mark.usefixtures("several")
def test_two_optimizers_are_watched_apart(rng, rank, size):
    first = Job({"a": DIVERGING, "b": "onebit"}, hvd.CompressionMonitor(**EAGER, fallback="bf16"))
    second = Job("int8", hvd.CompressionMonitor(every=2), names="cd")
    for number in range(6):
        own = numbers(rng, size)
        first.step(a=own[rank], b=own[rank])
        if number % 2:
            second.step(c=own[rank], d=own[rank])
    assert found("a").fault and found("a").step == 6 and found("c").step == 2 and found("c").codec == "int8"


def test_the_setting_does_the_same(rng, rank, size):
    new_session(watch_codecs=2)
    job = Job("onebit")
    own = numbers(rng, size)
    for _ in range(2):
        job.step(a=own[rank])
    assert hvd.metrics().compression.keys() == ({"allreduce.a", "allreduce.b"} if size > 1 else set())
    new_session()
    Job("onebit").step(a=own[rank])
    assert not hvd.metrics().compression and hvd.metrics().compression_ratio == 1


def test_what_cannot_be_measured_is_refused():
    monitor = hvd.CompressionMonitor()
    with pytest.raises(NotAvailableError, match="monitor=: a codec that takes over the optimizer's momentum"):
        Job("dgc", monitor)
    with pytest.raises(NotAvailableError, match="monitor=: the error of a codec is measured with op Average or Sum"):
        Job("fp16", monitor, op=hvd.Adasum)
    with pytest.raises(InvalidArgumentError, match="monitor=100: it must be a CompressionMonitor"):
        Job("onebit", 100)
    new_session(watch_codecs=5)
    with pytest.raises(
        NotAvailableError, match=r"watch_codecs=5 \(CASYNC_WATCH_CODECS\): what codecs do is measured in"
    ):
        hvd.LocalSGD(
            make_model(), torch.optim.SGD(make_model().parameters(), lr=0.1), sync_every=4, compression="onebit"
        )
    Job("none", op=hvd.Adasum)


@pytest.mark.usefixtures("several", "gloo")
def test_ddps_hook_is_watched_too(rank, size, caplog):
    model = make_model()
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rules = {"0.weight": DIVERGING, "*": "int8"}
    monitor = hvd.CompressionMonitor(**EAGER, fallback="bf16")
    state = hvd.ddp_state(rules, model.named_parameters(), monitor=monitor)
    ddp.register_comm_hook(state, hvd.ddp_hook)
    seen, residuals = [], []
    for number in range(7):
        step(ddp, optimizer, batch_of(number, rank))
        seen.append(hvd.plans()["allreduce.0.weight"].codec)
        residuals.append(found("0.weight").residual)
    switch = seen.index("none")
    assert seen[switch:] == ["none", *["bf16"] * (6 - switch)] and max(residuals) > 3 and residuals[-1] == 0
    assert all(theirs == seen for theirs in hvd.allgather_object(seen))
    assert found("2.weight").error < 1e-3 and not found("2.weight").fault and found("2.weight").step == 7
    assert state.state_dict()["fallbacks"] == {"0.weight": "always(bf16)"}
    saved = state.state_dict()
    new_session()
    ddp = nn.parallel.DistributedDataParallel(model)
    state = hvd.ddp_state(rules, model.named_parameters())
    ddp.register_comm_hook(state, hvd.ddp_hook)
    state.load_state_dict(saved)
    step(ddp, optimizer, batch_of(0, rank))
    assert hvd.plans()["allreduce.0.weight"].codec == "bf16" and hvd.plans()["allreduce.2.weight"].codec == "int8"


@pytest.mark.usefixtures("several")
def test_ranks_that_differ_about_what_is_sparse_measure_the_same(rank):
    """Rank 0 has no gradient of the embedding and submits dense zeros, which others do not see."""
    embedding, layer = nn.Embedding(50, 20, sparse=True), nn.Linear(20, 300)
    named = [("embedding", embedding.weight), ("weight", layer.weight)]
    optimizer = torch.optim.SGD([one for _, one in named], lr=0.0)
    rules = {"embedding": "fp16", "*": "int8"}
    monitor = hvd.CompressionMonitor(every=1)
    optimizer = hvd.DistributedOptimizer(optimizer, named, compression=rules, monitor=monitor)
    for _ in range(3):
        optimizer.zero_grad()
        inputs = torch.ones(2, 20) if rank == 0 else embedding(torch.tensor([3, rank]))
        layer(inputs).square().sum().backward()
        optimizer.step()
    assert hvd.metrics().compression.keys() == {"allreduce.weight"} and found("weight").step == 3

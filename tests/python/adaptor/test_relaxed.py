"""The rounds of local SGD and DiLoCo beside a simulation of all ranks in float64, and what must hold of them exactly.

Each rank's own steps are given: in step t rank i adds `move(i, t)` to its parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError, MismatchError, NotAvailableError
from casync.relaxed.fragment import Fragment
from casync.relaxed.outer import Averaging, Nesterov
from casync.relaxed.rounds import Rounds
from casync.relaxed.schedule import Schedule
from casync.session import default
from casync.tensors.adaptor import adaptor_of
from support.arrays import Array
from support.bindings import Binding
from support.ranks import LIMITS

SHAPES = ((257,), (3, 5), (0,), (2, 2, 2))
WITH_FEEDBACK = [
    "none",
    "onebit",
    "powersgd(rank=2)",
    "always(graddrop(drop=0.9))",
    "threelc",
    "tbq",
    "adacomp",
    "always(sparseloco)",
    "fp16",
]
CODECS = [*WITH_FEEDBACK, "terngrad(bits=8)", "always(ternary)"]


@pytest.fixture(autouse=True)
def computes(adaptor: Binding) -> None:
    """The other adaptors compute with NumPy's arrays."""
    if adaptor.name not in ("numpy", "torch", "cuda"):
        pytest.skip(f"rounds do not compute with tensors of {adaptor.name}")


def move(rank: int, step: int, dtype: Any = np.float32) -> list[Array]:
    rng = np.random.default_rng((rank, step))
    return [rng.standard_normal(shape).astype(dtype) * dtype(0.1) for shape in SHAPES]


class Held:
    """A tensor as a parameter."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name, self.tensor, self._tensors = name, tensor, adaptor_of(tensor)

    def read(self) -> Any:
        return self.tensor

    def write(self, values: Any) -> None:
        self._tensors.assign(self.tensor, self._tensors.cast(values, self._tensors.dtype(self.tensor)))


class Model:
    """Parameters with steps that are given, on this rank."""

    def __init__(
        self, adaptor: Binding, outer: Any = None, every: int = 4, *, cuts: Sequence[int] = (), delay: int = 0,
        alpha: float | None = None, codec: str = "none", weight: Callable[[], float] | None = None,
        dtype: Any = np.float32, buffers: Sequence[Array] = (), offset: float = 0.0,
    ) -> None:  # fmt: skip
        rank = default.session().rank
        self.adaptor, self.rank, self.step, self.dtype = adaptor, rank, 0, dtype
        self.held = [
            Held(f"w{i}", adaptor.tensor(np.full(shape, 1.0 + rank * offset, dtype))) for i, shape in enumerate(SHAPES)
        ]
        self.buffers = [Held(f"b{i}", adaptor.tensor(values)) for i, values in enumerate(buffers)]
        edges = [0, *cuts, len(SHAPES)]
        fragments = [Fragment(self.held[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
        fragments[0].buffers = self.buffers
        self.rounds: Rounds[Any] = Rounds(
            adaptor_of(self.held[0].tensor), fragments, Averaging() if outer is None else outer,
            Schedule(every, len(fragments), delay), Settings.of(compression=codec, topology=None, min_numel=0),
            alpha=alpha, weight=weight,
        )  # fmt: skip

    def run(self, steps: int) -> Model:
        for _ in range(steps):
            self.local_step()
            self.rounds.step()
        return self

    def local_step(self) -> None:
        self.step += 1
        for held, change in zip(self.held, move(self.rank, self.step, self.dtype), strict=True):
            held.write(self.adaptor.tensor(self.adaptor.array(held.tensor) + change))

    def values(self) -> list[Array]:
        return [self.adaptor.array(held.tensor).copy() for held in self.held]

    def anchors(self) -> list[Array]:
        return [self.adaptor.array(anchor).copy() for anchor in self.rounds.anchors.values()]

    def pending(self) -> list[Array]:
        """What this rank has not sent of each parameter's changes."""
        kept = default.session().codec_states
        found = []
        for held, shape in zip(self.held, SHAPES, strict=True):
            name = f"allreduce.{self.rounds.name}.{held.name}"
            total = np.zeros(int(np.prod(shape)))
            if name in kept.residual_names():
                total += kept.residual(name)
            if name in kept.state_names():
                total += sum(array["values"] for array in kept.state(name)["arrays"].values() if array["pending"])
            found.append(total)
        return found


def start_anew() -> None:
    """Random codecs draw numbers by the name of a tensor: what is made after this has the names of what was before."""
    default.shutdown()
    default.init(**LIMITS)


class Simulated:
    """All ranks at once, in float64 and uncompressed."""

    def __init__(
        self, size: int, every: int, cuts: Sequence[int], delay: int, alpha: float, lr: float, momentum: float
    ):
        edges = [0, *cuts, len(SHAPES)]
        self.parts = [range(a, b) for a, b in zip(edges, edges[1:], strict=False)]
        self.size, self.every, self.delay, self.alpha, self.lr, self.momentum = size, every, delay, alpha, lr, momentum
        self.anchors = [np.full(shape, 1.0) for shape in SHAPES]
        self.velocities = [np.zeros(shape) for shape in SHAPES]
        self.x = [[np.full(shape, 1.0) for shape in SHAPES] for _ in range(size)]

    def run(self, steps: int) -> None:
        pending: dict[int, list[tuple[int, Array]]] = {}
        for step in range(1, steps + 1):
            for rank in range(self.size):
                for i, change in enumerate(move(rank, step)):
                    self.x[rank][i] = self.x[rank][i] + change
            for place, part in enumerate(self.parts):
                if (step - (place + 1) * self.every // len(self.parts)) % self.every == 0:
                    taken = [
                        (i, np.mean([self.anchors[i] - self.x[rank][i] for rank in range(self.size)], axis=0))
                        for i in part
                    ]
                    pending.setdefault(step + self.delay, []).extend(taken)
            self.end(pending.pop(step, []))
        for late in pending.values():
            self.end(late)

    def end(self, means: Sequence[tuple[int, Array]]) -> None:
        for i, mean in means:
            self.velocities[i] = self.momentum * self.velocities[i] + mean
            self.anchors[i] = self.anchors[i] - self.lr * (mean + self.momentum * self.velocities[i])
            for rank in range(self.size):
                self.x[rank][i] = (1 - self.alpha) * self.anchors[i] + self.alpha * self.x[rank][i]


def assert_close(ours: Sequence[Array], theirs: Sequence[Array], tolerance: float = 2e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=tolerance, atol=tolerance)


def assert_equal(ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def assert_same_everywhere(adaptor: Binding, values: Sequence[Array]) -> None:
    for others in adaptor.hvd.allgather_object([one.tobytes() for one in values]):
        assert others == [one.tobytes() for one in values]


@pytest.mark.parametrize(
    ("every", "cuts", "delay", "alpha", "lr", "momentum"),
    [
        (1, (), 0, 0.0, 1.0, 0.0),
        (3, (), 0, 0.0, 0.7, 0.9),
        (4, (1, 3), 0, 0.0, 0.7, 0.9),
        (5, (), 2, 0.5, 0.7, 0.9),
        (6, (2,), 3, 0.25, 1.0, 0.0),
        (4, (1, 2, 3), 1, 0.0, 0.5, 0.5),
        (4, (1,), 3, 1.0, 0.7, 0.9),
    ],
)
def test_as_simulated(
    adaptor: Binding, size: int, every: int, cuts: tuple[int, ...], delay: int, alpha: float, lr: float, momentum: float
) -> None:
    model = Model(adaptor, Nesterov(lr, momentum), every, cuts=cuts, delay=delay, alpha=alpha, offset=0.5).run(23)
    model.rounds.flush()
    simulated = Simulated(size, every, cuts, delay, alpha, lr, momentum)
    simulated.run(23)
    assert_close(model.values(), simulated.x[model.rank])
    assert_close(model.anchors(), simulated.anchors)
    assert_same_everywhere(adaptor, model.anchors())


@pytest.mark.parametrize("codec", CODECS)
def test_no_momentum_and_lr_1_is_local_sgd_bit_for_bit(adaptor: Binding, codec: str) -> None:
    one = Model(adaptor, Averaging(), codec=codec).run(13).values()
    start_anew()
    assert_equal(Model(adaptor, Nesterov(1.0, 0.0), codec=codec).run(13).values(), one)


def test_fragments_change_nothing_if_all_are_sent_at_once(adaptor: Binding) -> None:
    whole, cut = Model(adaptor, Nesterov(), 100).run(5), Model(adaptor, Nesterov(), 100, cuts=(1, 3)).run(5)
    for model in (whole, cut):
        model.rounds.sync()
        model.run(3).rounds.sync()
    assert_equal(whole.values(), cut.values())


def test_alpha_1_leaves_parameters_alone(adaptor: Binding) -> None:
    model = Model(adaptor, Nesterov(), every=2, alpha=1.0, codec="onebit").run(9)
    alone = [np.full(shape, 1.0, np.float32) for shape in SHAPES]
    for step in range(1, 10):
        alone = [values + change for values, change in zip(alone, move(model.rank, step), strict=True)]
    assert_equal(model.values(), alone)
    assert_same_everywhere(adaptor, model.anchors())


@pytest.mark.parametrize("codec", WITH_FEEDBACK)
def test_mass_is_conserved_in_each_round(adaptor: Binding, size: int, codec: str) -> None:
    model = Model(adaptor, every=3, codec=codec)
    for _ in range(6):
        before, owed = model.anchors(), model.pending()
        for _ in range(3):
            model.local_step()
            changed = model.values()
            model.rounds.step()
        change = [anchor.astype(np.float64) - values for anchor, values in zip(before, changed, strict=True)]
        after, owed_after = model.anchors(), model.pending()
        for i, shape in enumerate(SHAPES):
            mine = change[i].reshape(-1) + owed[i] - owed_after[i]
            total = sum(adaptor.hvd.allgather_object(mine))
            given = size * (before[i].astype(np.float64) - after[i]).reshape(-1)
            tolerance = 2e-3 if codec == "fp16" else 2e-5
            np.testing.assert_allclose(given, total, atol=tolerance * size, err_msg=f"tensor of shape {shape}")


@pytest.mark.parametrize("codec", ["none", "onebit"])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_nan_on_one_rank_voids_the_round(
    adaptor: Binding, size: int, codec: str, delay: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(adaptor, Nesterov(), every=3, codec=codec, delay=delay, alpha=0.0).run(3 + delay)
    anchors, residuals = model.anchors(), model.pending()
    with caplog.at_level(logging.WARNING, "casync"):
        for step in range(3 - delay):
            model.local_step()
            if step == 2 - delay and model.rank == size - 1:
                model.held[1].write(adaptor.tensor(np.full(SHAPES[1], np.nan, np.float32)))
            model.rounds.step()
        model.rounds.flush()
    assert_equal(model.anchors(), anchors)
    assert_equal(model.values(), anchors)
    assert_equal(model.pending(), residuals)
    assert model.rounds.metrics.void_rounds == 1
    assert ("rank " + str(size - 1) + " holds NaN" in caplog.text) == (model.rank == 0)
    model.run(3).rounds.flush()
    assert not any(np.array_equal(a, b) for a, b in zip(model.anchors(), anchors, strict=True) if a.size)
    assert np.isfinite(model.anchors()[1]).all()


def test_weights_are_those_of_this_round(adaptor: Binding, size: int) -> None:
    turn = 0

    def weight() -> float:
        return float(model.rank * turn + 1)

    model = Model(adaptor, every=1, weight=weight)
    expected = [np.full(shape, 1.0) for shape in SHAPES]
    for turn in range(1, 5):
        model.run(1)
        weights = [rank * turn + 1 for rank in range(size)]
        for rank in range(size):
            for i, change in enumerate(move(rank, turn)):
                expected[i] = expected[i] + weights[rank] / sum(weights) * change
    assert_close(model.values(), expected)


def test_nobody_counts(adaptor: Binding) -> None:
    model = Model(adaptor, every=2, weight=lambda: 0.0, codec="onebit").run(4)
    assert model.rounds.metrics.rounds == 0
    assert_equal(model.anchors(), [np.full(shape, 1.0, np.float32) for shape in SHAPES])


@pytest.mark.parametrize("codec", ["none", "onebit"])
@pytest.mark.parametrize(("cuts", "delay"), [((), 0), ((1, 3), 0), ((), 2), ((2,), 1), ((1, 3), 3)])
def test_ranks_that_end_at_different_times_end_alike(
    adaptor: Binding, size: int, cuts: tuple[int, ...], delay: int, codec: str
) -> None:
    model = Model(adaptor, Nesterov(), every=4, cuts=cuts, delay=delay, codec=codec)
    model.run(5 + 7 * model.rank)
    model.rounds.finish()
    assert_same_everywhere(adaptor, model.values())
    assert_equal(model.values(), model.anchors())
    assert all(np.isfinite(values).all() for values in model.values())


def test_the_steps_of_all_ranks_count_once(adaptor: Binding, size: int) -> None:
    """Each rank's steps are in the mean over those ranks that made some in that round."""
    model = Model(adaptor, every=4).run(4 + 4 * default.session().rank)
    model.rounds.finish()
    expected = [np.full(shape, 1.0) for shape in SHAPES]
    for turn in range(size):
        part = range(turn, size)
        for i in range(len(SHAPES)):
            moved = [
                sum(move(rank, step)[i].astype(np.float64) for step in range(4 * turn + 1, 4 * turn + 5))
                for rank in part
            ]
            expected[i] = expected[i] + sum(moved) / len(part)
    assert_close(model.values(), expected)


def test_a_rank_that_has_joined_does_not_count(adaptor: Binding, size: int, several: None) -> None:
    model = Model(adaptor, every=2)
    model.run(2)
    if model.rank == size - 1:
        adaptor.hvd.join()
        return
    before = model.anchors()
    model.run(2)
    adaptor.hvd.join()
    for i in range(len(SHAPES)):
        moved = [sum(move(rank, step)[i].astype(np.float64) for step in (3, 4)) for rank in range(size - 1)]
        assert_close([model.anchors()[i]], [before[i] + sum(moved) / (size - 1)])


@pytest.mark.parametrize("codec", ["none", "onebit", "powersgd(rank=2)", "always(terngrad(bits=2))"])
@pytest.mark.parametrize("steps", [6, 8, 11])
def test_it_goes_on_bit_for_bit(adaptor: Binding, codec: str, steps: int) -> None:
    def made() -> Model:
        return Model(adaptor, Nesterov(), every=4, cuts=(2,), delay=2, codec=codec)

    whole = made().run(steps)
    state = whole.rounds.state_dict(lambda values: values)
    state["global"] = {name: adaptor.tensor(adaptor.array(values).copy()) for name, values in state["global"].items()}
    own = state[whole.rounds.own_key]
    own["parameters"] = {name: adaptor.tensor(adaptor.array(v).copy()) for name, v in own["parameters"].items()}
    state["outer"] = {
        "velocities": {n: adaptor.tensor(adaptor.array(v).copy()) for n, v in state["outer"]["velocities"].items()}
    }
    step = whole.step
    whole.run(9).rounds.flush()
    values, anchors, pending = whole.values(), whole.anchors(), whole.pending()
    start_anew()
    resumed = made()
    resumed.rounds.load_state_dict(state, lambda values: values)
    resumed.step = step
    resumed.run(9).rounds.flush()
    assert_equal(resumed.values(), values)
    assert_equal(resumed.anchors(), anchors)
    assert_equal(resumed.pending(), pending)


def test_the_state_of_another_rank_has_the_global_parameters_alone(adaptor: Binding, several: None) -> None:
    model = Model(adaptor, Nesterov(), every=4).run(6)
    state = model.rounds.state_dict(lambda values: values)
    del state[model.rounds.own_key]
    model.rounds.load_state_dict(state, lambda values: values)
    if model.rank:
        assert_equal(model.values(), model.anchors())
    assert_same_everywhere(adaptor, model.anchors())


def test_buffers(adaptor: Binding, rank: int, size: int) -> None:
    model = Model(
        adaptor, every=2, buffers=[np.full(3, 7.0, np.float32), np.array([5], np.int64)], weight=lambda: rank + 1.0
    )
    model.run(1)
    model.buffers[0].write(adaptor.full(3, float(rank)))
    model.buffers[1].write(adaptor.tensor(np.array([rank + 10], np.int64)))
    model.run(1)
    weights = np.arange(1.0, size + 1)
    adaptor.assert_close(
        model.buffers[0].tensor, np.full(3, (weights * np.arange(size)).sum() / weights.sum()), rtol=1e-6, atol=1e-7
    )
    adaptor.assert_equal(model.buffers[1].tensor, np.array([size + 9], np.int64))


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_16_bits_have_anchors_of_32(adaptor: Binding, codec: str) -> None:
    model = Model(adaptor, Nesterov(0.01, 0.0), every=1, dtype=np.float16, codec=codec).run(30)
    assert {values.dtype for values in model.anchors()} == {np.dtype(np.float32)}
    assert {values.dtype for values in model.values()} == {np.dtype(np.float16)}
    assert_equal(model.values(), [values.astype(np.float16) for values in model.anchors()])
    assert_same_everywhere(adaptor, model.anchors())


def test_evaluation_has_the_global_parameters(adaptor: Binding) -> None:
    model = Model(adaptor, every=4).run(6)
    own, anchors = model.values(), model.anchors()
    with model.rounds.global_parameters():
        assert_equal(model.values(), anchors)
        with pytest.raises(InvalidArgumentError, match="for evaluation"):
            model.rounds.step()
    assert_equal(model.values(), own)


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_a_state_that_is_made_within_an_evaluation_has_this_ranks_own_parameters(adaptor: Binding, codec: str) -> None:
    """Also where it ends a round that is under way."""
    plain = Model(adaptor, Nesterov(), every=4, delay=3, codec=codec).run(6)
    plain.rounds.flush()
    own, anchors = plain.values(), plain.anchors()
    start_anew()
    model = Model(adaptor, Nesterov(), every=4, delay=3, codec=codec).run(6)
    with model.rounds.global_parameters():
        state = model.rounds.state_dict(lambda values: values)
        assert_equal([adaptor.array(values) for values in state[model.rounds.own_key]["parameters"].values()], own)
        assert_equal(model.values(), anchors)
        for refused in (model.rounds.sync, model.rounds.finish):
            with pytest.raises(InvalidArgumentError, match="for evaluation"):
                refused()
        with pytest.raises(InvalidArgumentError, match="for evaluation"):
            model.rounds.load_state_dict(state, lambda values: values)
    assert_equal(model.values(), own)


def test_what_is_fixed_begins_alike_and_stays(adaptor: Binding, rank: int) -> None:
    held = [Held(name, adaptor.full(5, float(rank + 1))) for name in ("trained", "frozen")]
    rounds: Rounds[Any] = Rounds(
        adaptor_of(held[0].tensor), [Fragment(held[:1], fixed=held[1:])], Averaging(), Schedule(1),
        Settings.of(compression="none", topology=None, min_numel=0),
    )  # fmt: skip
    held[0].write(adaptor.full(5, float(rank)))
    rounds.step()
    adaptor.assert_equal(held[1].tensor, np.full(5, 1.0, np.float32))


def test_distance_is_that_of_the_parameters_from_their_mean(adaptor: Binding, size: int) -> None:
    model = Model(adaptor, every=2)
    for _ in range(2):
        model.local_step()
        flat = np.concatenate([values.reshape(-1).astype(np.float64) for values in model.values()])
        model.rounds.step()
    everyones = np.array(adaptor.hvd.allgather_object(flat))
    expected = np.sqrt(((everyones - everyones.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert adaptor.hvd.metrics().rounds[model.rounds.name].distance == pytest.approx(expected, rel=0.3, abs=1e-3)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_different_settings_are_refused_on_all_ranks(adaptor: Binding, rank: int, several: None) -> None:
    with pytest.raises(MismatchError, match="sync_every is") as refused:
        Model(adaptor, every=4 if rank == 0 else 5)
    assert "rank" in str(refused.value)
    Model(adaptor).run(4)


def test_different_rounds_are_refused_on_all_ranks(adaptor: Binding, rank: int, several: None) -> None:
    model = Model(adaptor, every=2)
    if rank == 0:
        state = model.rounds.state_dict(lambda values: values)
        model.rounds.load_state_dict({**state, "step": 2, "place": 1}, lambda values: values)
    with pytest.raises(MismatchError, match="different rounds"):
        model.run(2)


def test_a_model_of_other_shapes_is_refused(adaptor: Binding) -> None:
    model = Model(adaptor)
    state = model.rounds.state_dict(lambda values: values)
    state["global"]["w1"] = adaptor.ones(7)
    with pytest.raises(InvalidArgumentError, match=r"parameter w1 has shape \(7,\)"):
        model.rounds.load_state_dict(state, lambda values: values)


@pytest.mark.parametrize("alpha", [-0.1, 1.5, "half"])
def test_alpha_is_refused(adaptor: Binding, alpha: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="fragment_update_alpha"):
        Model(adaptor, alpha=alpha)


def test_a_weight_that_is_none_is_refused(adaptor: Binding) -> None:
    with pytest.raises(InvalidArgumentError, match="weight"):
        Model(adaptor, every=1, weight=lambda: float("nan")).run(1)


def test_a_codec_that_takes_momentum_is_refused(adaptor: Binding) -> None:
    with pytest.raises(NotAvailableError, match="momentum"):
        Model(adaptor, codec="dgc(ratio=0.01)")

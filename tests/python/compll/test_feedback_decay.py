"""Error feedback that decays: x = gradient + decay * residual, against NumPy, and what leaves a residual as it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from casync import _core
from casync.compll.conformance.checks import CHECKS
from casync.compll.conformance.subject import open_subject
from casync.compll.conformance.trial import perform
from casync.compll.conformance.world import World
from casync.errors import InvalidArgumentError

F = np.float32
STEPS = 5
Decode = Callable[[np.ndarray], np.ndarray]


def onebit(x: np.ndarray) -> np.ndarray:
    """What its payload of a matrix decodes to: rows of at least 256 values are its groups."""
    decoded = np.empty_like(x)
    for row, out in zip(x, decoded, strict=True):
        for chosen in (row >= 0, row < 0):
            out[chosen] = row[chosen].mean(dtype=np.float64) if chosen.any() else 0
    return decoded


def topk(x: np.ndarray) -> np.ndarray:
    values = x.ravel()
    sent = np.argsort(-np.abs(values), kind="stable")[: int(np.ceil(0.05 * values.size))]
    decoded = np.zeros_like(values)
    decoded[sent] = values[sent]
    return decoded.reshape(x.shape)


def sparseloco(x: np.ndarray) -> np.ndarray:
    """Of each 4096 values the 64 largest, each as the mean of those in its bin."""
    values, decoded = x.ravel().astype(np.float64), np.zeros(x.size, F)
    for begin in range(0, values.size, 4096):
        own = values[begin : begin + 4096]
        sent = np.argsort(-np.abs(own), kind="stable")[:64]
        place = np.clip(np.floor((own[sent] - own[sent].mean()) / (6 * own[sent].std() / 4)), -2, 1)
        decoded[begin + sent] = [own[sent][place == bin].mean() for bin in place]
    return decoded.reshape(x.shape)


class Direct:
    """All ranks send to all."""

    def __init__(self, decode: Decode, decay: float, size: int, shape: tuple[int, int]) -> None:
        self.decode, self.decay = decode, F(decay)
        self.residuals = np.zeros((size, *shape), F)

    def step(self, gradients: np.ndarray) -> np.ndarray:
        x = gradients + self.decay * self.residuals
        sent = np.array([self.decode(one) for one in x])
        self.residuals = x - sent
        mean: np.ndarray = sent.mean(axis=0)
        return mean


class Served(Direct):
    """Rank 0 owns all: it adds its own gradient as it is, and encodes the mean with its residual."""

    def step(self, gradients: np.ndarray) -> np.ndarray:
        x = gradients + self.decay * self.residuals
        sent = np.array([self.decode(one) for one in x[1:]]).reshape(-1, *gradients.shape[1:])
        total = x[0] + sent.sum(axis=0)
        mean = self.decode(total / F(len(gradients)))
        self.residuals = np.concatenate([[total - mean * F(len(gradients))], x[1:] - sent])
        return mean


class LowRank(Direct):
    """PowerSGD, with the first Q of the codec's. What it delivers depends on what P spans, not on P itself."""

    def __init__(self, q: np.ndarray, decay: float, size: int, shape: tuple[int, int]) -> None:
        super().__init__(onebit, decay, size, shape)
        self.q = q.reshape(shape[1], -1).astype(np.float64)

    def step(self, gradients: np.ndarray) -> np.ndarray:
        m = gradients + self.decay * self.residuals
        p, _ = np.linalg.qr((m @ self.q).mean(axis=0))
        own = np.array([one.T @ p for one in m])
        self.residuals = (m - p @ own.transpose(0, 2, 1)).astype(F)
        self.q = own.mean(axis=0)
        mean: np.ndarray = p @ self.q.T
        return mean


def gradients_of(step: int, size: int, shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng((7, step)).standard_normal((size, *shape), F)


def follow(world: World, reference: Direct, shape: tuple[int, int]) -> None:
    """Both take the same steps, and keep the same. float32 says less of the span of a few columns than of a sum."""
    off = 1e-3 if isinstance(reference, LowRank) else 2e-5
    for step in range(STEPS):
        gradients = gradients_of(step, world.size, shape)
        expected = reference.step(gradients)
        for result in world.step([one.ravel() for one in gradients]):
            np.testing.assert_allclose(result.reshape(shape), expected, rtol=off, atol=off)
        for rank, residual in zip(world.ranks, reference.residuals, strict=True):
            assert rank.residual is not None
            np.testing.assert_allclose(rank.residual, residual.ravel(), rtol=off, atol=off)


@pytest.mark.parametrize("decay", [1.0, 0.75, 0.3])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shape", [(40, 300), (7, 301), (3, 1001)])
class TestAgainstNumPy:
    def test_onebit_direct(self, decay: float, size: int, shape: tuple[int, int]) -> None:
        world = World(_core.Codec(f"onebit(feedback_decay={decay})"), shape, size, cut=3)
        follow(world, Direct(onebit, decay, size, shape), shape)

    def test_onebit_by_an_owner(self, decay: float, size: int, shape: tuple[int, int]) -> None:
        world = World(_core.Codec(f"onebit(feedback_decay={decay})"), shape, size, route="parameter server")
        follow(world, Served(onebit, decay, size, shape), shape)

    def test_topk(self, decay: float, size: int, shape: tuple[int, int]) -> None:
        world = World(_core.Codec(f"topk(ratio=0.05, feedback_decay={decay})"), shape, size)
        follow(world, Direct(topk, decay, size, shape), shape)

    def test_sparseloco(self, decay: float, size: int, shape: tuple[int, int]) -> None:
        world = World(_core.Codec(f"sparseloco(feedback_decay={decay})"), shape, size, cut=3)
        follow(world, Direct(sparseloco, decay, size, shape), shape)

    @pytest.mark.parametrize("route", ["direct", "parameter server"])
    def test_powersgd(self, decay: float, size: int, shape: tuple[int, int], route: str) -> None:
        spec = f"powersgd(rank=2, start_step=0, feedback_decay={decay})"
        world = World(_core.Codec(spec), shape, size, route=route)
        follow(world, LowRank(world.ranks[0].state[0].copy(), decay, size, shape), shape)


PROMISES = ("partitions", "feedback", "mass", "not finite")
LONG_UNITS = [
    pytest.param(codec, marks=[pytest.mark.slow, pytest.mark.timeout(300)]) for codec in ("threelc(", "graddrop(")
]


@pytest.mark.parametrize("codec", ["int4(", "tbq(", "powersgd(rank=2, start_step=0, ", *LONG_UNITS])
def test_the_promises_of_a_codec_hold_with_a_decay(codec: str) -> None:
    """Partitions change no bit, no mass is lost but what fades, and what is not finite changes no residual."""
    subject = open_subject(f"{codec}feedback_decay=0.75)")
    results = [perform(check, subject) for check in CHECKS if check.name in PROMISES]
    assert [result for result in results if result.passed is False] == []
    assert sum(result.passed is True for result in results) >= 3  # powersgd is never cut


@pytest.mark.parametrize(
    ("codec", "poisoned"),
    [("onebit(", slice(300, 600)), ("topk(", slice(None)), ("powersgd(start_step=0, ", slice(None))],
)
def test_a_step_that_is_void_does_not_decay(codec: str, poisoned: slice) -> None:
    """A unit with a NaN is void. The others go on."""
    world = World(_core.Codec(f"{codec}feedback_decay=0.5)"), (40, 300))
    first, second = (gradients_of(step, 1, (40, 300)).ravel() for step in range(2))
    world.step([first])
    residual = world.ranks[0].residual
    assert residual is not None
    before = residual.copy()
    second[450] = np.nan
    (result,) = world.step([second])
    assert residual[poisoned].tobytes() == before[poisoned].tobytes()
    assert np.isnan(result[poisoned]).all()
    if poisoned != slice(None):
        x = second[600:] + F(0.5) * before[600:]
        np.testing.assert_allclose(residual[600:], x - result[600:], atol=1e-6)


def test_a_decay_of_one_is_no_decay() -> None:
    """The bits are those of a codec that nobody told anything."""
    worlds = [World(_core.Codec(spec), (7, 301), 2) for spec in ("onebit", "onebit(feedback_decay=1)")]
    for step in range(STEPS):
        gradients = [one.ravel() for one in gradients_of(step, 2, (7, 301))]
        results = [world.step(gradients) for world in worlds]
        assert results[0][0].tobytes() == results[1][0].tobytes()
        kept = [rank.kept()["the residual"].tobytes() for world in worlds for rank in world.ranks]
        assert kept[:2] == kept[2:]


@pytest.mark.parametrize("codec", ["none", "fp16", "int8", "terngrad", "dgc", "adacomp"])
def test_it_takes_a_residual_of_the_runtime(codec: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"codec '{codec}\(.*no parameter 'feedback_decay'"):
        _core.check_codec(f"{codec}(feedback_decay=0.5)")


@pytest.mark.parametrize("decay", ["0", "-0.1", "1.5", "nan"])
def test_it_is_a_share(decay: str) -> None:
    with pytest.raises(InvalidArgumentError, match="feedback_decay must be above 0 and at most 1"):
        _core.check_codec(f"topk(feedback_decay={decay})")


def test_the_text_has_it_where_it_says_something() -> None:
    assert _core.check_codec("efsignsgd(feedback_decay=1.0)") == "efsignsgd"
    assert _core.check_codec("efsignsgd(feedback_decay=0.95)") == "efsignsgd(feedback_decay=0.95)"

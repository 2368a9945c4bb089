"""The typed tree says enough to run. With an interpreter of it (conftest.py) onebit and terngrad give the bytes of
tests/cpp/codec/data/payloads.txt, which hand-written codecs wrote, and the other algorithms do what their papers say.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync.compll.library import library_files

ROOT = Path(__file__).parents[3]
NAMES = list(library_files())
F = np.float32
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def golden(spec: str) -> tuple[bytes, bytes]:
    file = ROOT / "tests" / "cpp" / "codec" / "data" / "payloads.txt"
    found = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return next((bytes.fromhex(payload), bytes.fromhex(values)) for name, payload, values in found if name == spec)


@pytest.mark.parametrize(
    ("spec", "name", "given"),
    [
        ("onebit", "onebit", {}),
        ("terngrad(bits=2)", "terngrad", {"bits": 2}),
        ("terngrad(bits=4)", "terngrad", {"bits": 4}),
        ("terngrad(bits=8)", "terngrad", {"bits": 8}),
    ],
)
def test_the_bytes_are_those_that_hand_written_codecs_wrote(machine: Any, spec: str, name: str, given: dict) -> None:
    gradient = [((i * 37) % 101 - 50) / 64 for i in range(333)]
    rank = machine(name, (3, 111), name_hash=0x0123456789ABCDEF, step=0, **given)
    payload, decoded = golden(spec)
    assert rank.encode(gradient).hex() == payload.hex()
    assert rank.decode(payload).tobytes() == decoded


def gradient(n: int, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * 0.01).astype(F)


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("x", [gradient(1000), gradient(1000) ** 3, np.zeros(1000, F)], ids=["normal", "heavy", "zero"])
def test_decoding_never_ends_further_away_than_nothing(machine: Any, name: str, x: np.ndarray) -> None:
    given = {"rank": 2} if name == "powersgd" else {}
    rank = machine(name, (40, 25))
    rank.params |= given
    decoded = rank.decode(rank.encode(x))
    assert decoded.shape == x.shape and np.isfinite(decoded).all()
    if rank.codec.properties.contractive:
        assert np.linalg.norm(x - decoded) <= np.linalg.norm(x) * (1 + 1e-6)
    if not x.any():
        assert not decoded.any()


def test_bounds_hold(machine: Any) -> None:
    for name in ("dgc", "graddrop", "adacomp", "threelc"):
        for x in (gradient(1000), np.zeros(1000, F), np.ones(1000, F)):
            rank = machine(name, (40, 25))
            payload = rank.encode(x)
            bound = rank.codec.properties.bound
            assert bound is not None and len(payload) <= rank.value(bound), name


@pytest.mark.parametrize(("name", "kept"), [("dgc", "v"), ("adacomp", "residual")])
def test_what_is_not_sent_is_kept(machine: Any, name: str, kept: str) -> None:
    rank, x = machine(name, (40, 25)), gradient(1000)
    decoded = rank.decode(rank.encode(x))
    assert decoded.any()
    np.testing.assert_allclose(decoded + np.array(rank.env[kept], F), x, atol=1e-8)


def test_dgc_sends_the_largest(machine: Any) -> None:
    rank, x = machine("dgc", (40, 25), ratio=F(0.05)), gradient(1000)
    decoded = rank.decode(rank.encode(x))
    sent = np.flatnonzero(decoded)
    assert 40 <= len(sent) <= 50
    assert np.abs(x[sent]).min() >= np.sort(np.abs(x))[-80]
    warm = machine("dgc", (40, 25), warmup_steps=10, step=15)
    assert np.count_nonzero(warm.decode(warm.encode(x))) <= math.ceil(0.0625 * 1000)


def dgc_by_definition(x: np.ndarray, sample: np.ndarray, ratio: float) -> tuple[set[int], int]:
    """What is sent where these are looked at, and how often the threshold was lowered: a loop in float64."""
    magnitude, k = np.abs(x.astype(np.float64)), math.ceil(ratio * len(x))
    threshold, times = np.sort(np.abs(sample.astype(np.float64)))[::-1][int(ratio * len(sample))], 0
    while (magnitude >= threshold).sum() < 0.8 * k and times < 10:
        threshold, times = threshold * 0.8, times + 1
    index = np.flatnonzero(magnitude >= threshold)
    return set(index[np.argsort(-magnitude[index])][:k].tolist()), times


@pytest.mark.parametrize(("scales", "lowered"), [([1, 0.61, 0.73, 0.54], {0, 1}), ([1, 0.3, 0.42, 0.03], {0, 2})])
def test_dgc_lowers_a_threshold_that_selects_too_few(machine: Any, scales: list[float], lowered: set[int]) -> None:
    """Every fourth element is looked at, from a random one on, and each class of these has another scale: one of four
    things is sent, and fewer than k where the threshold was lowered.
    """
    stride, ratio = 4, 0.05
    x = gradient(1000) * np.tile(np.array(scales, F), 250)
    by_start = [dgc_by_definition(x, x[start::stride], ratio) for start in range(stride)]
    assert {times for _, times in by_start} == lowered
    assert all(len(sent) < 50 for sent, times in by_start if times > 0)
    seen = []
    for step in range(16):
        rank = machine("dgc", (40, 25), step=step, ratio=F(ratio), sample=F(1 / stride))
        seen.append(set(np.flatnonzero(rank.decode(rank.encode(x))).tolist()))
    assert all(sent in seen for sent, _ in by_start)
    assert all(any(sent == one for one, _ in by_start) for sent in seen)


def test_threelc_shortens_runs_of_zeros(machine: Any) -> None:
    rank, x = machine("threelc", (40, 25)), np.zeros(1000, F)
    x[0] = 1
    payload = rank.encode(x)
    assert payload[8] == 2 * 81 + 27 + 9 + 3 + 1
    assert len(payload) == 8 + 1 + math.ceil(199 / 14)  # 199 quintets of zeros
    assert payload[9:] == bytes([255] * 14 + [244])


def test_powersgd_is_exact_for_a_matrix_of_its_rank(machine: Any) -> None:
    left, right = gradient(40 * 2).reshape(40, 2), gradient(2 * 25, seed=2).reshape(2, 25)
    rank, x = machine("powersgd", (40, 25)), (left @ right).ravel()
    np.testing.assert_allclose(rank.decode(rank.encode(x)), x, atol=1e-7)


def test_tbq_takes_its_threshold_from_the_first_gradient(machine: Any) -> None:
    rank, x = machine("tbq", (40, 25)), gradient(1000)
    decoded = rank.decode(rank.encode(x))
    tau = 4 * np.abs(x).mean()
    np.testing.assert_allclose(np.abs(decoded[decoded != 0]), tau, rtol=1e-5)
    assert np.count_nonzero(decoded) == np.count_nonzero(np.abs(x) > tau)
    assert np.isnan(rank.decode(b"\xff" * 250)).all()

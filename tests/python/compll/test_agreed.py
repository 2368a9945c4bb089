"""randomk, topkc and thc, whose payloads add up, beside their papers' formulas in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from casync import _core
from casync.compll.conformance.world import World

CHUNK = 64


def gradients(n: int, ranks: int, seed: int = 1) -> list[np.ndarray]:
    """Chunks of magnitudes of their own, alike on all ranks, so that nobody is in doubt which are the largest."""
    random = np.random.default_rng(seed)
    magnitude = np.repeat(2.0 ** random.permutation(np.linspace(-12, 4, math.ceil(n / CHUNK))), CHUNK)[:n]
    return [(random.uniform(0.8, 1.2, n) * random.choice([-1, 1], n) * magnitude).astype(np.float32)
            for _ in range(ranks)]  # fmt: skip


def largest_chunks(x: list[np.ndarray], bits: float) -> np.ndarray:
    """Which elements are sent: J chunks of the largest squared norms over all ranks."""
    n = len(x[0])
    norms = [sum(float((own[begin : begin + CHUNK].astype(np.float64) ** 2).sum()) for own in x)
             for begin in range(0, n, CHUNK)]  # fmt: skip
    count = max(1, round((bits / 16 - 1 / CHUNK) * n / CHUNK))
    chosen = np.argsort(norms)[::-1][:count]
    return np.isin(np.arange(n) // CHUNK, chosen)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 99, 100, 101, 1000, 12345])
def test_randomk_sends_the_mean_of_one_of_each_hundred(n: int, ranks: int) -> None:
    x = gradients(n, ranks)
    mean, sent = np.mean([own.astype(np.float64) for own in x], axis=0), np.zeros(n)
    for step in range(200):
        decoded = World(_core.Codec("randomk"), (1, n), ranks, first=step).step(x)
        assert all((own == decoded[0]).all() for own in decoded)
        there = decoded[0] != 0
        np.testing.assert_allclose(decoded[0][there], mean[there], rtol=1e-6)
        assert np.add.reduceat(there, np.arange(0, n, 100)).max() == 1 and there.sum() == math.ceil(n / 100)
        sent += there
    if n > 10_000:  # each place has its turn twice on average, and 0.99 ** 200 of them have none
        assert sent.max() < 15 and 0.12 < (sent == 0).mean() < 0.15


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 63, 64, 1000, 5000])
def test_topkc_sends_the_mean_of_the_largest_chunks(n: int, ranks: int) -> None:
    x = gradients(n, ranks)
    world = World(_core.Codec("topkc"), (1, n), ranks)
    decoded = world.step(x)
    mean = np.mean([own.astype(np.float64) for own in x], axis=0)
    expected = np.where(largest_chunks(x, 2), mean, 0)
    for own in decoded:
        np.testing.assert_array_equal(own, decoded[0])
        np.testing.assert_allclose(own, expected, rtol=0, atol=2.0**-10 * np.abs(x).max())


@pytest.mark.parametrize("scale", [1e-15, 1e-6, 1e4, 1e14])
def test_topkc_neither_overflows_nor_vanishes(scale: float) -> None:
    """Sums of 16 bits over eight ranks whose gradients are equal, which is the largest that they can be. Squares below
    1e-38 vanish in float32.
    """
    x = [(gradients(1000, 1)[0].astype(np.float64) * scale).astype(np.float32)] * 8
    decoded = World(_core.Codec("topkc(bits=16)"), (1, 1000), 8).step(x)[0]
    kept = decoded != 0
    assert kept.sum() >= 900
    np.testing.assert_allclose(decoded[kept], x[0][kept], rtol=1e-3, atol=1e-7 * np.abs(x[0]).max())


def test_topkc_of_half_a_bit_sends_half_a_bit() -> None:
    codec, n = _core.Codec("topkc(bits=0.5, chunk=128)"), 1 << 20
    sent = sum(codec.bound((1, n), 0, (0, n), number) for number in range(2))
    assert abs(8 * sent / n - 0.5) < 0.002


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 100, 4096, 10000])
def test_thc_has_no_bias_and_the_error_of_its_levels(n: int, ranks: int) -> None:
    random, draws = np.random.default_rng(n), 60
    x = [(random.standard_normal(n) ** 3).astype(np.float32) for _ in range(ranks)]
    mean = np.mean([own.astype(np.float64) for own in x], axis=0)
    total, error = np.zeros(n), 0.0
    for step in range(draws):  # the first step of each world, since feedback would make up for what is lost
        decoded = World(_core.Codec("thc"), (1, n), ranks, first=step).step(x)
        assert all((own == decoded[0]).all() for own in decoded)
        total += decoded[0]
        error += float(((decoded[0] - mean) ** 2).sum()) / draws
    # A gap is a seventh of the largest rotated magnitude; rounding up or down is off by half of it at most, in the root
    # mean square, and the ranks' errors are apart.
    top = max(np.linalg.norm(own[begin : begin + 4096]) for own in x for begin in range(0, n, 4096))
    assert error <= n * (top / 7 / 2) ** 2 / ranks * 1.2 + 1e-12
    assert np.linalg.norm(total / draws - mean) <= 1.5 * math.sqrt(error / draws) + 1e-6 * np.linalg.norm(mean)


def test_sums_of_thc_saturate() -> None:
    """Of one element that is not zero all rotated values are the largest: twenty ranks add up 20 times 7 to 127."""
    x = np.zeros(4096, np.float32)
    x[5] = 1
    decoded = World(_core.Codec("thc"), (1, 4096), 20).step([x] * 20)[0]
    np.testing.assert_allclose(decoded, x * 127 / 140, atol=1e-5)

"""The tables of errors on the page of codecs are those of the figures, and what is measured is what it is called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.aggregate_error.__main__ import FIGURES, tables
from benchmarks.aggregate_error.aggregates import by_ring, cut_off, direct, served, vnmse
from benchmarks.fidelity import page

ROOT = Path(__file__).parents[3]
F = np.float32


def test_the_page_has_the_figures() -> None:
    text = (ROOT / "docs" / "codecs.md").read_text(encoding="utf-8")
    for mark, table in tables(json.loads((ROOT / FIGURES).read_text(encoding="utf-8"))).items():
        assert page.written(text, mark, table) == text, "python -m benchmarks.aggregate_error --page docs/codecs.md"


def gradients(workers: int, size: int = 40_000) -> np.ndarray:
    return np.random.default_rng(workers).standard_normal((workers, size)).astype(F)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_bfloat16_is_rounded_once_by_direct_and_at_each_hop_of_a_ring(workers: int) -> None:
    """Rounding to 8 bits of mantissa has a squared error of 2^-18 / 3 to 2^-16 / 3 of a value's square."""
    x = gradients(workers)
    once = vnmse(direct("bf16", x), x)
    assert 2**-18 / 3 < once < 2**-16 / 3
    # Independent gradients: a sum of k has k times the squared norm of one, and the mean is rounded at last.
    assert vnmse(served("bf16", x), x) == pytest.approx(once * ((workers - 1) / workers + 1), rel=0.05)
    assert vnmse(by_ring("bf16", x), x) == pytest.approx(once * ((workers - 1) / 2 + 1), rel=0.05)


def test_lossless_adds_up_values_of_bfloat16() -> None:
    torch = pytest.importorskip("torch")

    def rounded(values: np.ndarray) -> np.ndarray:
        return np.asarray(torch.from_numpy(values).bfloat16().float())

    x, fifth = gradients(5), F(1) / F(5)
    total = rounded(x[0])
    for one in x[1:]:
        total = total + rounded(one)
    np.testing.assert_array_equal(direct("lossless", x), total * fifth)
    passed = rounded(x[0])
    for one in x[1:4]:
        passed = rounded(passed + one)
    first = served("lossless", x)[:4096], by_ring("lossless", x)[:4096]
    own = x[0].copy()  # the owner does not round its own
    for one in x[1:]:
        own = own + rounded(one)
    np.testing.assert_array_equal(first[0], rounded(own * fifth)[:4096])
    np.testing.assert_array_equal(first[1], rounded((passed + x[4]) * fifth)[:4096])


def test_sums_that_eight_bits_do_not_hold_are_counted() -> None:
    """A block with one value that is not 0 has that magnitude everywhere, so four ranks that agree add up 4 x 127."""
    x = np.zeros((4, 4096), F)
    x[:, 17] = 3.0
    assert cut_off("thc(q=8)", x) == 1.0
    assert cut_off("thc(q=4)", x) == 0.0
    assert vnmse(direct("thc(q=4)", x), x) == pytest.approx(0.0, abs=1e-10)
    assert vnmse(direct("thc(q=8)", x), x) == pytest.approx((1 - 1 / 4) ** 2, rel=1e-4)

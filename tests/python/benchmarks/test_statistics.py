"""Means and intervals of the accuracy table, against values worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.statistics import interval, manual, rows


def test_the_interval_is_students():
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    # s = 1.29099, s / 2 = 0.645497; t(0.975, 3) = 3.182446
    assert half == pytest.approx(3.182446 * 0.645497, rel=1e-5)


def test_differences_are_taken_seed_by_seed():
    none = {"accuracy": [90.0, 96.0, 99.0], "sent_mib": [100.0, 100.0, 100.0]}
    worse = {"accuracy": [89.0, 95.0, 98.0], "sent_mib": [10.0, 11.0, 12.0]}
    first, second = rows({"none": none, "onebit": worse})
    assert first[0] == "none" and first[2] == ""
    assert second == ("onebit", "94.00 ± 11.38", "-1.00 ± 0.00", "89.00", "11.0")
    assert manual({"none": none, "onebit": worse}).splitlines()[3].startswith("| `onebit` | 94.00 ± 11.38 | -1.00")

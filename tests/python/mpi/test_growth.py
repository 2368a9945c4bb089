"""Ever new shapes and names leave next to nothing behind. benchmarks/growth.py does the same for longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import casync.numpy as hvd
import numpy as np
import pytest

_KEPT = 1_100  # a few more than a session keeps of operations
_MORE = 2_000
_MOST_BYTES = 5 << 20  # before anything was evicted these took 12 MiB


def _resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


_VALUES = np.ones(200 + _KEPT + _MORE, np.float32)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda i: hvd.allreduce(_VALUES[: 100 + i], name="growth.shape"), id="shapes"),
        pytest.param(lambda i: hvd.allreduce(_VALUES[:100], name=f"growth.name.{i}"), id="names"),
    ],
)
def test_new_ones_do_not_add_up(step: Callable[[int], object]) -> None:
    for i in range(_KEPT):
        step(i)
    before = _resident_bytes()
    for i in range(_KEPT, _KEPT + _MORE):
        step(i)
    assert _resident_bytes() - before < _MOST_BYTES


def test_what_was_forgotten_is_right_again() -> None:
    mean = (hvd.size() - 1) / 2
    for _ in range(2):
        for i in range(_KEPT):
            result = hvd.allreduce(np.full(3 + i % 5, float(hvd.rank()) + i, np.float32), name=f"growth.again.{i}")
            assert result.tolist() == [mean + i] * (3 + i % 5)
    for i in range(_KEPT):
        rows = hvd.allgather(np.full((1 + (hvd.rank() + i) % 3, 1), hvd.rank(), np.int32), name=f"growth.rows.{i}")
        assert len(rows) == sum(1 + (rank + i) % 3 for rank in range(hvd.size()))

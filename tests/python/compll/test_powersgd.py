"""PowerSGD's warm start: what a step without a gradient leaves behind. And the memory that a step takes."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from casync import _core
from casync.compll.conformance.contract import Source
from casync.compll.conformance.rank import Rank, written
from casync.compll.conformance.world import World

SHAPE = (64, 48)


def test_a_gradient_of_zeros_does_not_end_it() -> None:
    """M = 0 makes Q = 0; the next P = M Q must not stay 0 with it, or nothing is ever sent again."""
    random = np.random.default_rng(1)
    left, right = random.standard_normal((64, 2)), random.standard_normal((2, 48))
    low_rank = (left @ right).astype(np.float32).ravel()
    world = World(_core.Codec("powersgd(rank=2, start_step=0)"), SHAPE, 2)
    zeros = [np.zeros(64 * 48, np.float32)] * 2
    assert not world.step(zeros)[0].any()
    delivered = sum(world.step([low_rank, low_rank])[0].astype(np.float64) for _ in range(12))
    error = np.linalg.norm(delivered / 12 - low_rank) / np.linalg.norm(low_rank)
    assert error < 0.2, "of rank 2, so two columns soon find it"


STATUS = Path("/proc/self/status")


def resident() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return 1024 * int(found[1])


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_a_step_needs_little_memory_beside_the_gradient() -> None:
    """Its matrices are narrow; nothing as long as the gradient may be kept for a thread."""
    shape, part = (4096, 2048), (0, 4096 * 2048)
    rank = Rank(_core.Codec("powersgd(rank=4, start_step=0)"), shape)
    gradient = np.ones(part[1], np.float32)
    assert rank.residual is not None
    rank.residual[:] = 0
    raw = [rank.raw(gradient, part)]
    first = rank.encoding(part, raw, 0, feedback=True)
    second = rank.encoding(part, raw, 0, feedback=True, round=1)
    last = rank.delivering(part, [], 0, round=1)
    taken = []

    def step() -> None:
        before = resident()
        rank.codec.run([first])
        second.previous = last.previous = written(first)
        rank.codec.run([second])
        last.sources = [Source(written(second))]
        rank.codec.run([last])
        taken.append(resident() - before)

    fresh = threading.Thread(target=step)  # what a thread keeps it has not got yet
    fresh.start()
    fresh.join()
    assert taken[0] < gradient.nbytes / 4

"""PowerSGD's warm start: what a step without a gradient leaves behind."""

import numpy as np

from casync import _core
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

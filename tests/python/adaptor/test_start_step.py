"""`start_step`, a parameter of every codec: gradients are exact until then."""

import numpy as np
import pytest


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("codec", ["onebit(", "int4(", "topk(ratio=0.1, ", "tbq(tau=0.1, ", "terngrad(bits=4, "])
def test_gradients_are_exact_until_then(adaptor, hvd, size, rank, codec):
    everyones = [np.random.default_rng(one).standard_normal(5000).astype(np.float32) for one in range(size)]
    mean = np.mean(np.array(everyones, np.float64), axis=0)
    for step in range(4):
        reduced = adaptor.array(
            hvd.allreduce(adaptor.tensor(everyones[rank]), name=f"late.{codec}", compression=f"{codec}start_step=2)")
        )
        off = np.abs(reduced - mean).max()
        assert (off < 1e-5) == (step < 2), f"step {step}: {off}"


def test_it_is_a_step(adaptor, hvd):
    with pytest.raises(ValueError, match="start_step must be at least 0"):
        hvd.allreduce(adaptor.ones(5000), name="early", compression="onebit(start_step=-1)")
    with pytest.raises(ValueError, match="start_step"):
        hvd.allreduce(adaptor.ones(5000), name="early", compression="onebit(start=1)")

"""covap without an interval: it is measured, all ranks take it in one step, and nothing is lost meanwhile."""

import logging
import time

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync.errors import InvalidArgumentError
from support.replicas import assert_same_everywhere
from support.training import new_session

NUMEL = 400_000
GRADIENTS = 4


def of_all_ranks(size, step, number):
    return np.random.default_rng([step, number]).integers(-8, 9, (size, NUMEL)).astype(np.float32)


def run(rank, size, steps, backward_s, compression):
    """Return what was delivered and the sum of all gradients, in steps whose backward pass sleeps."""
    delivered, total = np.zeros((2, GRADIENTS, NUMEL))
    for step in range(steps):
        given = [of_all_ranks(size, step, number) for number in range(GRADIENTS)]
        total += np.array([one.sum(0) for one in given])
        mine = [torch.from_numpy(one[rank].copy()) for one in given]
        handles = []
        for number in range(GRADIENTS):
            if backward_s:
                time.sleep(backward_s / GRADIENTS)
            name = f"w{number}"
            handles.append(hvd.allreduce_async_(mine[number], op=hvd.Sum, name=name, compression=compression))
        for number, handle in enumerate(handles):
            result = hvd.synchronize(handle)
            assert_same_everywhere(result)
            delivered[number] += result.numpy()
    return delivered, total


def left(number):
    from casync.session import default

    kept, tensor = default.session().codec_states, f"allreduce.w{number}"
    own = kept.residual(tensor) if tensor in kept.residual_names() else np.zeros(NUMEL)
    return hvd.allreduce(torch.from_numpy(own.astype(np.float64)), op=hvd.Sum, name=f"left{number}").numpy()


def until_measured(rank, size, compression):
    """Return the plans of a new session, what it delivered, and the sum of all gradients."""
    new_session()
    delivered, total = np.zeros((2, GRADIENTS, NUMEL))
    for _ in range(10):  # on a busy machine the planner takes longer than some steps do
        more, of_all = run(rank, size, 16, 0, compression)
        delivered, total = delivered + more, total + of_all
        if hvd.broadcast_object("which was measured" in hvd.plans()["allreduce.w0"].reason):
            break
    return [hvd.plans()[f"allreduce.w{number}"] for number in range(GRADIENTS)], delivered, total


def test_a_short_backward_pass_asks_for_an_interval(rank, several, size, caplog):
    """What a slow codec takes is a part of the communication. Where the machine is busy, submitting takes as long: then
    the next session measures again."""
    with caplog.at_level(logging.INFO, logger="casync"):
        for _ in range(8):
            plans, delivered, total = until_measured(rank, size, "covap(topk(ratio=0.05))")
            if plans[0].period > 1:
                break
    assert {plan.period for plan in plans} <= {2, 3, 4}, caplog.text
    assert len({plan.period for plan in plans}) == 1
    if plans[0].partitions < plans[0].period:
        assert len({plan.offset for plan in plans}) == min(plans[0].period, GRADIENTS)
    assert "which was measured" in plans[0].reason
    for number in range(GRADIENTS):
        np.testing.assert_allclose(delivered[number] + left(number), total[number], rtol=0, atol=1e-2)
    if rank == 0:
        assert f"interval {plans[0].period}" in caplog.text


@pytest.mark.parametrize("compression", ["covap", "covap(none)"])
def test_a_long_backward_pass_asks_for_none(rank, several, size, compression):
    new_session()
    delivered, total = run(rank, size, 8, 0.4, compression)
    assert {hvd.plans()[f"allreduce.w{number}"].period for number in range(GRADIENTS)} == {1}
    np.testing.assert_array_equal(delivered, total)


def test_a_deterministic_run_needs_an_interval(rank, size):
    new_session(deterministic=True)
    with pytest.raises(InvalidArgumentError, match="measures its interval, which differs from run to run"):
        hvd.allreduce(torch.ones(5000), name="w", compression="covap(fp16)")
    hvd.allreduce(torch.ones(5000), name="w", compression="covap(fp16, interval=2)")


def test_a_long_interval_is_taken_with_a_warning(rank, several, caplog):
    new_session()
    with caplog.at_level(logging.WARNING, logger="casync"):
        for number in range(3):
            hvd.allreduce(torch.ones(5000), name=f"v{number}", compression="covap(none, interval=6)")
    assert caplog.text.count("an interval of 6 applies") == (1 if rank == 0 else 0)

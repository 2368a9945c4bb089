"""The same bits in every run: `seed` and `deterministic`. Runs differ in the order and the time of their gradients."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest

from casync.session import default

SIZES = (70_001, 33_000, 5_000, 90_112, 4_097, 250)
STEPS = 4
DRAW = ("terngrad(bits=2)", "qsgd", "randomk(ratio=0.1)", "thc")
"""Codecs with random numbers."""
CODECS = ("none", "fp16", "onebit", "topk(ratio=0.05)", "powersgd(rank=2, start_step=1)", *DRAW)
pytestmark = pytest.mark.usefixtures("several")


def run(adaptor, rank, codec, topology="auto", order=0, **settings):
    """The bytes of all results of a job of its own. In `order` 0 all gradients come as they are listed, at once."""
    default.shutdown()
    default.init(timeout_s=20.0, **settings)
    hvd, dice = adaptor.hvd, random.Random(1000 * order + rank)
    found = []
    for step in range(STEPS):
        submitted = list(range(len(SIZES)))
        if order:
            dice.shuffle(submitted)
        handles = {}
        for number in submitted:
            shape = (SIZES[number] // 50, 50)
            values = np.random.default_rng((step, rank, number)).standard_normal(shape).astype(np.float32)
            time.sleep(dice.choice((0, 0.004)) if order else 0)
            handles[number] = hvd.allreduce_async(
                adaptor.tensor(values), name=f"w{number}", compression=codec, topology=topology
            )
        found += [adaptor.array(hvd.synchronize(handles[number])).tobytes() for number in range(len(SIZES))]
    plans = {name: (plan.codec, plan.topology, plan.partitions, plan.first_owner) for name, plan in hvd.plans().items()}
    return found, plans


@pytest.fixture(autouse=True)
def as_before():
    yield
    default.shutdown()
    default.init()


@pytest.mark.parametrize("codec", [*CODECS, "auto", "auto(qsgd, onebit)"])
def test_two_runs_have_the_same_bits(adaptor, rank, codec):
    found, plans = run(adaptor, rank, codec, deterministic=True)
    for order in (1, 2):
        again, other_plans = run(adaptor, rank, codec, order=order, deterministic=True)
        assert other_plans == plans
        assert again == found


@pytest.mark.parametrize("topology", ["direct", "ps"])
@pytest.mark.parametrize("codec", CODECS)
def test_memory_threads_and_batches_change_nothing(adaptor, rank, codec, topology):
    found, _ = run(adaptor, rank, codec, topology, deterministic=True, seed=3)
    settings = {"pool_bytes": 300_000, "worker_threads": 3, "coordinator": "global", "coordinator_batch_bytes": 10_000}
    again, _ = run(adaptor, rank, codec, topology, order=1, deterministic=True, seed=3, **settings)
    assert again == found


@pytest.mark.parametrize(
    ("codec", "topology"),
    [
        ("none", "ps"),
        *((c, "direct") for c in ("none", "fp16", "onebit", "topk(ratio=0.05)", "qsgd", "terngrad(bits=2)")),
    ],
)
def test_partitions_change_nothing_where_every_rank_computes_the_same(adaptor, rank, codec, topology, tmp_path):
    found = []
    for partitions in (1, 7):
        gradients = {f"allreduce.w{number}": {"codec": codec, "topology": topology, "partitions": partitions}
                     for number, size in enumerate(SIZES) if size >= 4096}  # fmt: skip
        file = tmp_path / f"{partitions}.json"
        file.write_text(json.dumps({"format": "casync-plan", "version": 2, "gradients": gradients}))
        results, plans = run(adaptor, rank, codec, topology, deterministic=True, plan_file=str(file))
        assert plans["allreduce.w0"][2] == partitions
        found.append(results)
    assert found[0] == found[1]


@pytest.mark.parametrize("codec", CODECS)
def test_another_seed_gives_other_random_numbers_and_nothing_else(adaptor, rank, codec):
    found, plans = run(adaptor, rank, codec, "ps", deterministic=True)
    again, other_plans = run(adaptor, rank, codec, "ps", deterministic=True, seed=2**32 - 1)
    assert other_plans == plans
    begins_at_random = codec.startswith("powersgd")
    assert (again != found) == (codec in DRAW or begins_at_random)


def test_ranks_with_different_seeds_are_told_both(adaptor, hvd, rank):
    default.shutdown()
    default.init(timeout_s=20.0, seed=5 if rank else 4)
    with pytest.raises(hvd.MismatchError, match=r"Mismatched seed \d and \d: .*tensor allreduce\.w") as caught:
        hvd.allreduce(adaptor.ones(9000), name="w", compression="qsgd")
    assert "seed 4" in str(caught.value) and "seed 5" in str(caught.value)
    adaptor.assert_equal(hvd.broadcast(adaptor.ones(3), 0, name="b"), np.ones(3, np.float32))  # it draws nothing


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "many", True])
def test_a_seed_that_is_none_is_refused(hvd, seed):
    default.shutdown()
    with pytest.raises(hvd.InvalidArgumentError, match="seed=.*must be a whole number from 0 to 4294967295"):
        default.init(seed=seed)


def test_what_is_planned_by_the_clock_is_refused(hvd):
    default.shutdown()
    with pytest.raises(
        hvd.InvalidArgumentError, match=r"deterministic=True .* and re_plan=True .*leave one of them out"
    ):
        default.init(deterministic=True, re_plan=True)

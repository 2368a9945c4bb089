"""Plans to and from JSON: a run with the file of another one uses those plans, and no others."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from casync.plan.plans import GradientPlan, read_plans, write_plans
from casync.plan.topology import shown, to_text

SIZES = (1_000, 50_000, 300_000)


def train(adaptor, hvd, rank, steps=1):
    """`steps` steps of some gradients, whose codec is left open; every rank must get the same bits."""
    for step in range(steps):
        for numel in SIZES:
            values = np.linspace(-1, 1, numel, dtype=np.float32) * np.float32(rank + 1 + step)
            result = hvd.allreduce(adaptor.tensor(values), name=f"w{numel}", compression="auto")
            adaptor.assert_same_bits_everywhere(result)


def start_with(hvd, path):
    hvd.shutdown()
    hvd.init(timeout_s=20.0, plan_file=str(path))


def test_plans_of_a_run_are_those_of_the_next(adaptor, hvd, tmp_path, rank, size):
    path = hvd.broadcast_object(str(tmp_path / "plan.json"))
    for _ in range(200):  # until it is decided which way stays
        train(adaptor, hvd, rank)
        if size == 1 or any("compared" in plan.reason for plan in hvd.plans().values()):
            break
    plans = hvd.plans()
    assert not any(plan.on_trial for plan in plans.values())
    assert sorted(plans) == [f"allreduce.w{numel}" for numel in sorted(SIZES, key=str)]
    assert hvd.allgather_object(plans) == [plans] * size
    if rank == 0:
        write_plans(path, plans)
    hvd.barrier()
    start_with(hvd, path)
    train(adaptor, hvd, rank, steps=6)
    assert hvd.plans() == plans == read_plans(path)


def test_plans_that_no_planner_would_make_are_used(adaptor, hvd, tmp_path, rank, size):
    """Also by tensors that the planner would leave uncompressed, or would send at once."""
    path = hvd.broadcast_object(str(tmp_path / "plan.json"))
    plans = {
        "allreduce.w1000": GradientPlan("ring", "onebit", 3, 1, 7, "by hand"),
        "allreduce.w50000": GradientPlan("direct", "terngrad(bits=4)", 2, 5, 0, "by hand"),
        "allreduce.w300000": GradientPlan("ps", "fp16", 11, size + 1, 0, "by hand"),
    }
    if rank == 0:
        write_plans(path, plans)
    hvd.barrier()
    start_with(hvd, path)
    before = hvd.counters()["sent_bytes"]
    train(adaptor, hvd, rank, steps=5)
    assert hvd.plans() == plans
    if size > 1:
        assert hvd.counters()["sent_bytes"] > before


def test_a_topology_that_the_script_names_is_the_plans_or_an_error(adaptor, hvd, tmp_path, rank, size):
    path = hvd.broadcast_object(str(tmp_path / "plan.json"))
    plan = GradientPlan("ring", "fp16", 2, 0, 0, "by hand")
    if rank == 0:
        write_plans(path, {f"allreduce.{name}": plan for name in ("other", "same", "open")})
    hvd.barrier()
    start_with(hvd, path)
    tensor = adaptor.ones(100_000)
    if size > 1:
        with pytest.raises(hvd.InvalidArgumentError) as caught:
            hvd.allreduce(tensor, name="other", compression="auto", topology="ps")
        for text in ("allreduce.other", "ring", "ps", "leave the topology out", *(() if adaptor.in_graph else (path,))):
            assert text in str(caught.value)
    hvd.allreduce(tensor, name="other", compression="auto")  # as the error says; the session stays usable
    hvd.allreduce(tensor, name="same", compression="auto", topology="ring")
    hvd.allreduce(tensor, name="open", compression="fp16", topology="auto")
    assert set(hvd.plans().values()) == {plan} and len(hvd.plans()) == 3


def chain(size):
    """Sums go from the last rank down to rank 0, results back."""
    down = [[rank + 1, rank, "reduce"] for rank in range(size - 1)]
    up = [[rank, rank + 1, "broadcast"] for rank in range(size - 1)]
    return {"nodes": list(range(size)), "edges": down + up}


def test_a_graph_from_a_file_is_a_topology(adaptor, hvd, tmp_path, rank, size):
    path = hvd.broadcast_object(str(tmp_path / "chain.json"))
    if rank == 0:
        Path(path).write_text(json.dumps(chain(size)))
    hvd.barrier()
    values = np.arange(50_000, dtype=np.float32) % 64 * np.float32(rank + 1)
    for codec in ("none", "onebit"):
        result = hvd.allreduce(adaptor.tensor(values), name=codec, op=hvd.Sum, compression=codec, topology=path)
        adaptor.assert_same_bits_everywhere(result)
        if codec == "none":
            expected = np.arange(50_000) % 64 * (size * (size + 1) // 2)
            np.testing.assert_array_equal(adaptor.array(result), expected)
    if size > 1:
        assert {to_text(chain(size))} == {plan.topology for plan in hvd.plans().values()}
        assert all(shown(plan.topology) in plan.reason for plan in hvd.plans().values())  # the core calls it so, too


def test_a_graph_that_cannot_be_is_refused_by_name(adaptor, hvd, tmp_path, rank, size):
    graph = chain(size)
    wrong = chain(size + 1)
    lost = {**graph, "edges": [edge for edge in graph["edges"] if edge[2] == "reduce"]}
    for name, document, said in (("wrong", wrong, f"the world has {size} ranks"), ("lost", lost, "nobody sends")):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document))
        if size == 1:
            continue
        with pytest.raises(hvd.InvalidArgumentError, match=said):
            hvd.allreduce(adaptor.ones(100_000), name=name, topology=str(path))
    hvd.allreduce(adaptor.ones(10), name="goes on")


def test_a_codec_that_the_script_names_comes_first(adaptor, hvd, tmp_path, rank, size):
    path = hvd.broadcast_object(str(tmp_path / "plan.json"))
    plan = GradientPlan("ps", "onebit", 2, 0, 0, "by hand")
    if rank == 0:
        write_plans(path, {"allreduce.named": plan, "allreduce.same": plan, "allreduce.default": plan})
    hvd.barrier()
    start_with(hvd, path)
    hvd.allreduce(adaptor.ones(100_000), name="named", compression="none")
    hvd.allreduce(adaptor.ones(100_000), name="same", compression="onebit")
    plans = hvd.plans()
    assert plans["allreduce.named"].codec == "none" and plans["allreduce.same"] == plan
    assert replace(plans["allreduce.named"], reason="") != replace(plan, reason="")


def test_plans_carry_numbers(adaptor, hvd, rank, size):
    """At least a prediction; of a plan that was made anew, what its codec was measured to cost."""
    train(adaptor, hvd, rank, steps=6)
    for plan in hvd.plans().values():
        if size == 1:
            assert (plan.predicted_s, plan.payload_bytes, plan.measured_encode_s_per_byte) == (0, 0, 0)
            continue
        # Each is that of the gradient alone: in a step the slower one may be the better.
        assert plan.predicted_s > 0 and plan.uncompressed_s > 0
        assert plan.payload_bytes > 0
        assert (plan.measured_encode_s_per_byte > 0) is (plan.epoch == 1 and plan.codec != "none")


def test_named_codecs_are_planned_from_what_was_measured_if_that_is_asked_for(adaptor, hvd, rank, size):
    hvd.shutdown()
    hvd.init(timeout_s=20.0, re_plan=True)
    for step in range(1000):  # until what was told is planned
        values = np.linspace(-1, 1, 300_000, dtype=np.float32) * np.float32(rank + 1 + step)
        result = hvd.allreduce(adaptor.tensor(values), name="w", compression="onebit")
        adaptor.assert_same_bits_everywhere(result)
        plan = hvd.plans()["allreduce.w"]
        if step >= 5 and (size == 1 or plan.epoch == 1):
            break
    assert plan.codec == ("onebit" if size > 1 else "none")
    assert plan.epoch == (1 if size > 1 else 0)
    assert (plan.measured_encode_s_per_byte > 0) == (size > 1)

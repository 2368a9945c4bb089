"""Plan files of version 2: phases, steps that are left out, the world and the tensors that they are for."""

import json
from pathlib import Path

import casync.torch as hvd
import pytest
import torch

from casync.plan.phases import to_phases
from casync.plan.plans import GradientPlan, read_plans, write_plans

NUMEL = 20_000


def start_with(tmp_path, rank, gradients, world=None, version=2, **options):
    """Begin anew with a plan file, whose path all ranks have from rank 0."""
    path = Path(hvd.broadcast_object(str(tmp_path / "plan.json")))
    document = {"format": "casync-plan", "version": version, "gradients": gradients}
    if rank == 0:
        path.write_text(json.dumps(document if world is None else document | {"world": {"host_of": world}}))
    hvd.barrier()
    hvd.shutdown()
    hvd.init(timeout_s=20.0, plan_file=str(path), **options)


@pytest.fixture
def back():
    """The session of the next test has no plan file."""
    yield
    hvd.shutdown()
    hvd.init(timeout_s=20.0)


def test_a_file_of_version_1_still_runs(tmp_path, rank, size, back):
    plan = {"topology": "ring", "codec": "fp16", "partitions": 3, "first_owner": 1, "epoch": 1, "reason": "by hand"}
    start_with(tmp_path, rank, {"allreduce.w": plan | {"until": 0, "predicted_s": 0.5}}, version=1)
    for _ in range(3):
        assert torch.equal(hvd.allreduce(torch.ones(NUMEL), name="w", compression="auto"), torch.ones(NUMEL))
    assert hvd.plans()["allreduce.w"] == GradientPlan(**plan, predicted_s=0.5)


@pytest.mark.parametrize("between", ["direct", "ps", "ring"])
def test_phases_are_executed(tmp_path, rank, size, back, between):
    topology = f"two_level({between})"
    phases = to_phases(topology, "fp16", 3, on_host=True)
    start_with(tmp_path, rank, {"allreduce.w": {"phases": phases}})
    for step in range(3):
        values = torch.arange(NUMEL) % 64 * (rank + 1.0) + step
        total = torch.arange(NUMEL) % 64 * (size * (size + 1) / 2) + step * size
        result = hvd.allreduce(values, name="w", op=hvd.Sum, compression="auto")
        torch.testing.assert_close(result, total, rtol=2e-3, atol=0)
    plan = hvd.plans()["allreduce.w"]
    assert (plan.topology, plan.codec, plan.partitions, plan.on_host) == (topology, "fp16", 3, True)


@pytest.mark.parametrize("codec", ["none", "onebit", "onebit(feedback_bits=8)", "dgc(warmup_steps=0)"])
def test_steps_that_are_left_out_send_nothing_and_lose_nothing(tmp_path, rank, size, back, codec):
    phases = to_phases("ps", codec, 2, on_host=False)
    start_with(tmp_path, rank, {"allreduce.w": {"phases": phases, "when": {"period": 3, "offset": 2}}})
    total, results = torch.zeros(NUMEL), torch.zeros(NUMEL)
    for step in range(7):
        values = torch.arange(NUMEL) % 8 * (rank + 1.0) + step
        total += torch.arange(NUMEL) % 8 * (size * (size + 1) / 2) + step * size
        before = hvd.counters()["sent_bytes"]
        result = hvd.allreduce(values, name="w", op=hvd.Sum, compression="auto")
        results += result
        if size > 1 and step % 3 != 2:
            assert not result.any()
            assert hvd.counters()["sent_bytes"] - before < 1000  # that it begins
    if codec == "none" and size > 1:  # the last step is still to be sent
        held = torch.arange(NUMEL) % 8 * (size * (size + 1) / 2) + 6 * size
        assert torch.equal(results, total - held)
    elif codec != "none":
        assert float(results.abs().sum()) > 0


@pytest.mark.parametrize("codec", ["onebit", "onebit(feedback_bits=8)"])
def test_ranks_that_have_joined_hold_nothing_back(tmp_path, rank, several, size, back, codec):
    phases = to_phases("ps", codec, 1, on_host=False)
    start_with(tmp_path, rank, {"allreduce.w": {"phases": phases, "when": {"period": 2, "offset": 0}}})
    values = torch.ones(NUMEL)
    for step in range(1 if rank == 0 else 5):
        result = hvd.allreduce(values.clone(), name="w", op=hvd.Sum, compression="auto")
        expected = {0: size, 1: 0, 3: 0}.get(step, 2 * (size - 1))  # two steps of all but rank 0
        rounding = 1e-4 if "bits" in codec else 0
        torch.testing.assert_close(result, torch.full((NUMEL,), float(expected)), rtol=rounding, atol=0)
    hvd.join()


def test_a_file_of_another_world_is_refused_by_name(tmp_path, rank, size, back):
    plan = {"allreduce.w": {"phases": to_phases("ps", "none", 1, on_host=False)}}
    with pytest.raises(hvd.InvalidArgumentError) as caught:
        start_with(tmp_path, rank, plan, world=[0] * size + [1])
    for text in ("plan.json", f"{size + 1} ranks on 2 hosts ({size} + 1)", f"{size} rank", "casync.plan.write_plans"):
        assert text in str(caught.value)
    hvd.init(timeout_s=20.0)
    start_with(tmp_path, rank, plan, world=[0] * size)


def test_a_plan_of_another_tensor_is_refused_by_name(tmp_path, rank, several, back):
    phases = to_phases("ps", "none", 1, on_host=False)
    content = {"tensor": "float32 (20, 30)", "phases": phases}
    integers = {"phases": phases, "when": {"period": 2, "offset": 0}}
    start_with(tmp_path, rank, {"allreduce.w": content, "allreduce.i": integers})
    with pytest.raises(
        hvd.InvalidArgumentError, match=r"made for float32 \(20, 30\), and the tensor is float32 \(30, 20\)"
    ):
        hvd.allreduce(torch.ones(30, 20), name="w", compression="auto")
    with pytest.raises(hvd.InvalidArgumentError, match="one step of 2, and a Sum of int64 has no residual"):
        hvd.allreduce(torch.ones(7, dtype=torch.int64), name="i", op=hvd.Sum, compression="auto")
    hvd.allreduce(torch.ones(20, 30), name="w", compression="auto")  # the session stays usable


def test_what_is_saved_says_world_and_tensors(tmp_path, rank, size):
    hvd.allreduce(torch.ones(100, 60), name="w", compression="none")
    path = tmp_path / "plan.json"
    write_plans(path, hvd.plans())
    read = read_plans(path)
    assert read == hvd.plans() and read["allreduce.w"].tensor == "float32 (100, 60)"
    assert read.host_of == hvd.plans().host_of == (0,) * size


def test_a_process_set_goes_without_the_plans_of_its_world(tmp_path, rank, size, back):
    if size < 3:
        pytest.skip("needs a set of some ranks that exchange something")
    plan = {"allreduce.w": {"phases": to_phases("ring", "fp16", 7, on_host=False)}}
    start_with(tmp_path, rank, plan, world=[0] * size, process_sets="dynamic")
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        hvd.allreduce(torch.ones(NUMEL), name="w", compression="auto", process_set=pair)
        assert hvd.plans(pair)["allreduce.w"].partitions < 7
    hvd.allreduce(torch.ones(NUMEL), name="w", compression="auto")
    assert hvd.plans()["allreduce.w"].partitions == 7
    hvd.remove_process_set(pair)

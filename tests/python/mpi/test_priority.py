"""Priorities: alike on all ranks, in a plan as the program or its file says them, and nothing but an order."""

import json
from pathlib import Path

import casync.torch as hvd
import pytest
import torch

from casync.session import default
from casync.tensors.signature import OpKind, OpSignature, Sum

NUMEL = 20_000


def reduced(name: str, values: torch.Tensor, priority: int) -> torch.Tensor:
    """The sum over all ranks, in place."""
    owner = default.session()
    terms = OpSignature(name, OpKind.ALLREDUCE, "float32", tuple(values.shape), Sum, priority=priority)
    handle = owner.submit(owner.register(terms), values.data_ptr(), values.data_ptr(), values)
    return owner.synchronize(handle)


def test_ranks_that_differ_are_told_the_tensor_the_ranks_and_both(rank, several):
    with pytest.raises(hvd.MismatchError, match=r"Mismatched priority -?\d and -?\d: .* tensor allreduce\.w") as caught:
        reduced("allreduce.w", torch.ones(NUMEL), -3 if rank == 0 else 4)
    assert "rank 0: " in str(caught.value)
    for value in ("priority -3", "priority 4"):
        assert value in str(caught.value)


def test_another_priority_is_another_registration(rank, size):
    owner = default.session()
    of_terms = {
        owner.register(OpSignature("allreduce.v", OpKind.ALLREDUCE, "float32", (NUMEL,), Sum, priority=p))
        for p in (0, 5, 0)
    }
    assert len(of_terms) == 2
    for priority in (0, 5, 0, -1):
        result = reduced("allreduce.v", torch.full((NUMEL,), rank + 1.0), priority)
        assert torch.equal(result, torch.full((NUMEL,), size * (size + 1) / 2))


@pytest.mark.parametrize("submit", [hvd.allreduce_async, hvd.allreduce_async_])
def test_an_operation_that_a_program_calls_has_one(submit, rank, size):
    for priority in (7, 7, -2, 0):
        given = torch.full((NUMEL,), rank + 1.0)
        handle = submit(given, name="u", op=hvd.Sum, priority=priority)
        assert torch.equal(hvd.synchronize(handle), torch.full((NUMEL,), size * (size + 1) / 2))
        assert hvd.plans()["allreduce.u"].priority == priority


def test_an_operation_whose_priority_differs_is_refused(rank, several):
    with pytest.raises(hvd.MismatchError, match=r"Mismatched priority \d and \d: .* tensor allreduce\.t"):
        hvd.synchronize(hvd.allreduce_async(torch.ones(NUMEL), name="t", priority=rank))


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.0, "high", True, None])
def test_what_is_no_priority_is_refused(priority):
    with pytest.raises(hvd.InvalidArgumentError, match="priority=.*must be a whole number from -2147483648"):
        hvd.allreduce_async(torch.ones(NUMEL), name="s", priority=priority)


@pytest.fixture
def plan_file(tmp_path, rank):
    """A session that is given a plan file; the next test has a new one."""
    path = Path(hvd.broadcast_object(str(tmp_path / "plan.json")))
    if rank == 0:
        gradients = {"allreduce.given": {"priority": 7}, "allreduce.left": {}}
        path.write_text(json.dumps({"format": "casync-plan", "version": 2, "gradients": gradients}))
    hvd.barrier()
    hvd.shutdown()
    hvd.init(timeout_s=20.0, plan_file=str(path))
    yield
    hvd.shutdown()
    hvd.init(timeout_s=20.0)


@pytest.mark.usefixtures("plan_file")
def test_a_plan_says_what_the_program_or_its_file_says():
    for name in ("allreduce.given", "allreduce.left", "allreduce.planned"):
        reduced(name, torch.ones(NUMEL), -2)
    found = {name: plan.priority for name, plan in hvd.plans().items() if name.startswith("allreduce.")}
    assert found == {"allreduce.given": 7, "allreduce.left": None, "allreduce.planned": -2}


def test_any_priorities_in_any_order_give_the_same_results(rank, size):
    owner = default.session()
    for step in range(4):
        handles = []
        for i in range(40):
            number = (i * 7 + step) % 40
            values = torch.full((NUMEL + number,), rank + number + 0.0)
            terms = OpSignature(
                f"allreduce.g{number}", OpKind.ALLREDUCE, "float32", (NUMEL + number,), Sum, priority=-number
            )
            handle = owner.submit(owner.register(terms), values.data_ptr(), values.data_ptr(), values)
            handles.append((number, handle))
        for number, handle in handles:
            values = owner.synchronize(handle)
            assert torch.equal(values, torch.full((NUMEL + number,), sum(range(size)) + size * number + 0.0))

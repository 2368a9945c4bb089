"""What an error is about stands in its fields: nobody reads a text for it."""

import copy
import pickle

import casync.torch as hvd
import pytest
import torch

from casync import errors
from casync.plan.plans import GradientPlan, write_plans

FIELDS = {"kind": "stalled", "tensor": "allreduce.w", "op": "allreduce", "rank": 3, "peer": 0}
CLASSES = [
    item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.CasyncError)
]  # fmt: skip


def fields(error):
    return {name: getattr(error, name) for name in FIELDS}


@pytest.mark.parametrize("kind", CLASSES)
def test_fields_survive_pickling(kind):
    for made in (kind("text", **FIELDS), kind("text")):
        for copied in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
            assert type(copied) is kind
            assert (str(copied), fields(copied)) == ("text", fields(made))


@pytest.mark.parametrize("kind", CLASSES)
def test_what_does_not_apply_is_none(kind):
    assert fields(kind("text")) == dict.fromkeys(FIELDS) | {"kind": kind.USUAL_KIND}


def test_a_wrong_argument(world):
    with pytest.raises(hvd.InvalidArgumentError) as caught:
        hvd.allreduce(torch.ones(10_000), name="w", compression="threebit", op=hvd.Sum)
    assert caught.value.kind == "invalid_argument"
    with pytest.raises(hvd.InvalidArgumentError) as caught:
        hvd.allreduce(torch.ones(10_000), name="w", op=hvd.Max, prescale_factor=2.0)
    about = {"kind": "invalid_argument", "tensor": "allreduce.w", "op": "allreduce", "rank": 0, "peer": None}
    assert fields(caught.value) == about


def test_a_name_that_is_taken(world):
    handle = hvd.allgather_async(torch.ones(3), name="w")
    with pytest.raises(hvd.InvalidArgumentError) as caught:
        hvd.allgather_async(torch.ones(3), name="w")
    about = {"kind": "invalid_argument", "tensor": "allgather.w", "op": "allgather", "rank": 0, "peer": None}
    assert fields(caught.value) == about
    hvd.synchronize(handle)


def test_a_plan_that_does_not_fit(tmp_path):
    write_plans(tmp_path / "plan.json", {"allreduce.w": GradientPlan("ps", "onebit")})
    hvd.init(plan_file=str(tmp_path / "plan.json"))
    with pytest.raises(hvd.InvalidArgumentError, match=r"does not fit it.*plan\.json") as caught:
        hvd.allreduce(torch.ones(9000, dtype=torch.int32), name="w", op=hvd.Sum, compression="auto")
    about = {"kind": "unfit_plan", "tensor": "allreduce.w", "op": "allreduce", "rank": 0, "peer": None}
    assert fields(caught.value) == about
    hvd.shutdown()


def test_a_rank_that_dies_is_named_as_the_world_counts_it(job):
    """In the world, and inside a process set, which has other numbers for its ranks."""
    status, output, notes = job(
        3,
        """
        one = hvd.ProcessSet([1, 2])
        hvd.shutdown()
        hvd.init(peer_timeout_s=4.0, timeout_s=20.0, process_sets=[one])
        hvd.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce(torch.ones(1000), name="w", process_set=one if rank == 1 else hvd.global_process_set)
        except hvd.PeerFailureError as error:
            note(**{name: getattr(error, name) for name in ("kind", "tensor", "op", "rank", "peer")})
            raise
        """,
    )
    assert status != 0, output
    for rank in (0, 1):
        assert notes[rank].pop("kind") in ("peer_gone", "peer_silent")
        notes[rank].pop("at")
        assert notes[rank] == {"tensor": "allreduce.w", "op": "allreduce", "rank": rank, "peer": 2}, output


def test_an_exception_of_another_rank(job):
    status, output, notes = job(
        2,
        """
        if rank == 1:
            raise ValueError("bad label")
        try:
            hvd.broadcast(torch.ones(1000), 0, name="w")
        except hvd.AbortedError as error:
            note(**{name: getattr(error, name) for name in ("kind", "tensor", "op", "rank", "peer")})
            raise
        """,
    )
    assert status != 0, output
    notes[0].pop("at")
    about = {"kind": "aborted", "tensor": "broadcast.w", "op": "broadcast", "rank": 0, "peer": 1}
    assert notes[0] == about, output

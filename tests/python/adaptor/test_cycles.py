"""init() and shutdown() again and again in one process: nothing stays behind, whatever was outstanding."""

import gc
import os
import time

import numpy as np
import pytest

from support.held import Meeting, held
from support.ranks import LIMITS


def cycle(adaptor, hvd, number, world, folder):
    """A whole life: sets, a timeline, operations that end well and one that does not, a codec that keeps something, a
    handle that nobody waits for."""
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(range(1, world))] if world > 1 else []
    hvd.init(process_sets=sets, **LIMITS)
    hvd.start_timeline(str(folder / "timeline.json"))
    rank, size = hvd.rank(), hvd.size()
    late = hvd.add_process_set([0, size - 1]) if size > 2 else None
    for one in sets:
        if one.included():
            hvd.barrier(process_set=one)
    adaptor.assert_filled(hvd.allreduce(adaptor.full(5000, number), name="t"), 5000, number)
    adaptor.assert_filled(hvd.allgather(adaptor.ones((rank + 1, 2))), (size * (size + 1) // 2, 2), 1)
    hvd.grouped_allreduce([adaptor.ones(10), adaptor.ones(20_000)], op=hvd.Sum)
    for name in ("weight", "bias"):
        hvd.allreduce(adaptor.ones(10_000), name=name, compression="onebit")
    if size > 1:
        with pytest.raises(hvd.MismatchError):
            hvd.allreduce(adaptor.ones(3 + rank), name="mismatch")
    if late is not None and number % 2:
        hvd.remove_process_set(late)
    hvd.allreduce_async(adaptor.ones(1000), name="abandoned")
    hvd.barrier()
    hvd.shutdown()


def test_many_cycles_leave_nothing_behind(adaptor, hvd, rank, size, monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    meeting = Meeting(tmp_path, rank, size)
    hvd.shutdown()
    cycles = adaptor.cycles
    for number in range(cycles // 10):
        cycle(adaptor, hvd, number, size, tmp_path)
    before = meeting.held("before")
    for number in range(cycles):
        cycle(adaptor, hvd, number, size, tmp_path)
    assert meeting.held("after") == before
    hvd.init(**LIMITS)
    now = held()
    counted = ["threads", "sessions"]
    if size > 1:
        by = "file descriptors" if os.environ.get("CASYNC_TRANSPORT") == "tcp" else "communicators"
        counted += ["segments of shared memory", by]
    assert all(now[name] > before[name] for name in counted), "a session that is open is seen"


def test_handles_that_nobody_waits_for(adaptor, hvd, rank, size):
    """Operations of all kinds keep their tensors alive until shutdown, which does not wait for what cannot end."""
    submits = [
        lambda t: hvd.allreduce_async(t, name="allreduce", compression="onebit"),
        lambda t: hvd.grouped_allreduce_async([t, adaptor.ones(9)], name="out of place"),
        lambda t: hvd.allgather_async(t, name="gather"),
        lambda t: hvd.alltoall_async(t, name="turn"),
        lambda t: hvd.reducescatter_async(t, name="scatter"),
    ]
    if adaptor.in_place:
        submits += [lambda t, i=i: hvd.allreduce_async_(t, name=f"in place {i}") for i in range(3)]
        submits += [
            lambda t: hvd.grouped_allreduce_async_([t, adaptor.ones(9)], name="group"),
            lambda t: hvd.broadcast_async_(t, 0, name="broadcast"),
        ]
    if rank == 0:
        submits.append(lambda t: hvd.allreduce_async(t, name="on one rank only"))
    there = []
    for submit in submits:
        tensor = adaptor.ones(600_000 * size)
        there.append(adaptor.memory(tensor))
        submit(tensor)
    del tensor
    gc.collect()
    hvd.barrier()
    assert all(one() for one in there)
    hvd.barrier()  # or the first to go on would end what others look at
    start = time.monotonic()
    hvd.shutdown()
    assert time.monotonic() - start < 10
    gc.collect()
    assert not any(one() for one in there)
    hvd.init(**LIMITS)
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(9), name="in place 0"), 9, 1)


def test_handles_of_an_earlier_session_are_told_apart(adaptor, hvd):
    stale = [hvd.allreduce_async(adaptor.ones(3), name=f"t{i}") for i in range(5)]
    hvd.shutdown()
    hvd.init(**LIMITS)
    fresh = [hvd.allreduce_async(adaptor.full(3, 2), name=f"t{i}") for i in range(8)]
    assert [hvd.synchronize(handle) for handle in stale] == [None] * 5
    for handle in fresh:
        adaptor.assert_filled(hvd.synchronize(handle), 3, 2)


def test_results_outlive_their_session(adaptor, hvd, rank, size):
    """They are ordinary tensors, also those whose memory the core had filled."""
    expected = np.concatenate([np.full((1000, 3), r, np.float32) for r in range(size)])
    kept = [hvd.allreduce(adaptor.full((1000, 3), rank), op=hvd.Sum), hvd.allgather(adaptor.full((1000, 3), rank))]
    hvd.shutdown()
    gc.collect()
    hvd.init(**LIMITS)
    hvd.allgather(adaptor.full((1000, 3), -1))
    adaptor.assert_filled(kept[0], (1000, 3), sum(range(size)))
    adaptor.assert_equal(kept[1], expected)

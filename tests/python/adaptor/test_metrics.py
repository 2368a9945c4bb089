"""Metrics: counters that are always on, and agree with what else counts the same."""

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from casync.observe.metrics import Metrics, Traffic

NUMEL = 300_000
CODECS = ("none", "fp16", "onebit")


@pytest.fixture
def path(hvd, tmp_path_factory):
    return hvd.broadcast_object(str(tmp_path_factory.mktemp("metrics") / "trace.json"), 0)


def in_timeline(path: str, rank: int) -> Counter:
    """By direction, codec, peer and unit, what the messages of a timeline come to."""
    events = json.loads(Path(path if rank == 0 else f"{path}.{rank}").read_text())
    found: Counter = Counter()
    for event in events:
        direction, *_ = event["name"].split()
        if event["ph"] == "X" and direction in ("send", "recv"):
            of = event["args"]
            key = direction, of["codec"], int(event["name"].rsplit(" ", 1)[1])
            found += Counter({(*key, "messages"): 1, (*key, "raw"): of["raw_bytes"], (*key, "wire"): of["wire_bytes"]})
    return found


def in_metrics(metrics: Metrics) -> Counter:
    found: Counter = Counter()
    for name, codec in metrics.codecs.items():
        for direction, traffic in (("send", codec.sent), ("recv", codec.received)):
            for peer, one in traffic.items():
                key = direction, name, peer
                found += Counter({(*key, "messages"): one.messages})
                found += Counter({(*key, "raw"): one.raw_bytes, (*key, "wire"): one.wire_bytes})
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_those_of_the_timeline(adaptor, hvd, path, rank, size, codec):
    before = hvd.metrics()
    hvd.start_timeline(path)
    for step in range(3):
        hvd.allreduce(adaptor.full(NUMEL, rank + step), name="large", compression=codec, op=hvd.Sum)
        hvd.allreduce(adaptor.ones(100), name="small", op=hvd.Sum)
    hvd.allgather(adaptor.ones((5 + rank, 2)), name="gathered")
    hvd.stop_timeline()
    after = hvd.metrics()
    timeline = in_timeline(path, rank)
    assert in_metrics(after) - in_metrics(before) == timeline
    assert bool(timeline) == (size > 1)
    of = hvd.plans()["allreduce.large"].codec
    assert of == codec or size == 1
    if size == 1:
        return
    # In all, every element goes N-1 times to its owner and N-1 times back.
    sent = Traffic.total(after.codecs[codec].sent.values())
    every = hvd.allgather_object((sent.raw_bytes, sent.wire_bytes))
    raw, wire = (sum(column) for column in zip(*every, strict=True))
    assert raw >= 3 * 2 * (size - 1) * 4 * NUMEL
    shares = {"none": (1, 1), "fp16": (0.5, 0.5), "onebit": (1 / 26, 1 / 25)}
    assert shares[codec][0] <= wire / raw <= shares[codec][1]
    assert after.transport.sent_bytes >= sum(one.wire_bytes for of in after.codecs.values() for one in of.sent.values())


def test_what_is_counted(adaptor, hvd, rank, size):
    submit = hvd.allreduce_async_ if adaptor.in_place else hvd.allreduce_async
    for _ in range(5):
        handles = [submit(adaptor.ones(NUMEL), name=f"gradient{i}", compression="onebit", op=hvd.Sum) for i in range(3)]
        time.sleep(0.002)
        for handle in handles:
            hvd.synchronize(handle)
    metrics = hvd.metrics()
    assert (metrics.rank, metrics.size) == (rank, size)
    assert metrics.steps == 5 and metrics.step_seconds.count == metrics.exposed_seconds.count == 4
    assert metrics.step_seconds.sum > 4 * 0.002 and metrics.exposed_seconds.sum <= metrics.step_seconds.sum
    assert metrics.waited_seconds >= metrics.exposed_seconds.sum
    if size > 1:
        onebit = metrics.codecs["onebit"]
        assert onebit.operations == 15 and onebit.tensor_bytes == 15 * NUMEL * 4
        works = hvd.allgather_object([(w.tasks, w.seconds) for w in (onebit.encode, onebit.merge, onebit.decode)])
        assert all(sum(tasks for tasks, _ in of) > 0 < sum(s for _, s in of) for of in zip(*works, strict=True))
        assert 0 < metrics.pool.peak_bytes <= metrics.pool.capacity_bytes == 24 << 20
    assert metrics.queues.operations == metrics.queues.tasks == metrics.queues.sends == metrics.failed_operations == 0
    assert sorted(metrics.lateness) == (list(range(size)) if rank == 0 else [])
    assert json.loads(json.dumps(metrics.as_dict()))["steps"] == 5


def test_a_late_rank_shows_on_rank_0(adaptor, hvd, rank, size):
    if size == 1:
        pytest.skip("nobody is late alone")
    for _ in range(3):
        if rank == size - 1:
            time.sleep(0.1)
        hvd.allreduce(adaptor.ones(NUMEL), name="t")
    if rank == 0:
        late = hvd.metrics().lateness
        assert late[size - 1].last >= 3 and late[size - 1].seconds > 0.25
        assert sum(late[peer].seconds for peer in range(size - 1)) < late[size - 1].seconds


def test_a_thread_looks_while_another_waits(adaptor, hvd, rank, size):
    """Without waiting for it: neither for the interpreter nor for a lock of the session."""
    hvd.barrier()
    if rank == size - 1 and size > 1:
        time.sleep(0.6)
    waiter = threading.Thread(target=lambda: hvd.allreduce(adaptor.ones(NUMEL), name="awaited"))
    waiter.start()
    if rank != size - 1:
        time.sleep(0.1)
        began = time.monotonic()
        looks = [hvd.metrics() for _ in range(10)]
        assert time.monotonic() - began < 0.1
        assert waiter.is_alive() and all(one.queues.operations == 1 for one in looks)
    waiter.join()
    if rank != size - 1 and adaptor.blocks and not adaptor.in_graph:
        assert hvd.metrics().waited_seconds > 0.3


def test_each_process_set_has_its_own(adaptor, hvd, rank, size):
    if size == 1:
        pytest.skip("a world of one has no other sets")
    hvd.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        hvd.init(timeout_s=20.0)
        first = hvd.add_process_set([0])
        if rank == 0:
            hvd.allreduce(adaptor.ones(10), name="alone", process_set=first)
            assert hvd.metrics(first).codecs["none"].operations == 1 and hvd.metrics(first).size == 1
            hvd.metrics()
        else:
            with pytest.raises(ValueError, match="not a member"):
                hvd.metrics(first)


def test_after_shutdown_the_last_numbers_stay(adaptor, hvd, size):
    hvd.allreduce(adaptor.ones(NUMEL), name="t", compression="fp16")
    before = hvd.metrics()
    hvd.shutdown()
    after = hvd.metrics()
    assert after.codecs == before.codecs and after.steps == before.steps == 1
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.counters()
    hvd.init(timeout_s=20.0)
    assert hvd.metrics().steps == 0


def test_gradients_have_what_was_predicted_beside_what_they_took(adaptor, hvd, rank, size):
    for step in range(3):
        hvd.allreduce(adaptor.full(NUMEL, rank + step), name="first", compression="onebit")
        hvd.allreduce(adaptor.ones(NUMEL), name="second")
    hvd.broadcast(adaptor.ones(10), 0, name="none")
    gradients = hvd.metrics().gradients
    assert set(gradients) == {"allreduce.first", "allreduce.second"}
    for name, one in gradients.items():
        assert one.operations == 3
        assert one.seconds > 0
        assert one.predicted_seconds == pytest.approx(3 * hvd.plans()[name].predicted_s, abs=1e-8)
        assert hvd.plans()[name].measured_s == one.plan_seconds == pytest.approx(one.seconds / 3, abs=1e-8)
    first, second = gradients["allreduce.first"], gradients["allreduce.second"]
    assert first.ready_seconds == 0 < second.ready_seconds
    assert (first.encoded_bytes > 20 * first.payload_bytes > 0) == (size > 1)
    assert second.payload_bytes == 0

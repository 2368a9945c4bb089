"""Timelines: files that a viewer opens at any time, with every phase of every tensor."""

import itertools
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from casync.observe import trace_merge as trace


@pytest.fixture
def path(hvd, tmp_path_factory):
    return hvd.broadcast_object(str(tmp_path_factory.mktemp("timeline") / "trace.json"), 0)


def own(path: str, rank: int) -> list[dict]:
    file = Path(path if rank == 0 else f"{path}.{rank}")
    return json.loads(file.read_text())


def threads(events: list[dict]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_phases_and_bytes_of_every_tensor(adaptor, hvd, path, rank, size):
    hvd.start_timeline(path, mark_cycles=True)
    own(path, rank)  # valid from the start
    for _ in range(3):
        hvd.allreduce(adaptor.ones(100_000), name='of "a" tensor', compression="onebit", op=hvd.Sum)
        own(path, rank)
    hvd.allgather(adaptor.ones(3), name="g")
    hvd.stop_timeline()
    hvd.allreduce(adaptor.ones(5), name="unseen")
    events = own(path, rank)
    names = threads(events)
    assert {event["pid"] for event in events} == {rank}
    phases = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            phases[names[event["tid"]]].append(event)
    tensor = phases['allreduce.of "a" tensor']
    assert [event["name"] for event in tensor] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * 3
    assert all(before["ts"] + before["dur"] <= after["ts"] + 0.01 for before, after in itertools.pairwise(tensor))
    for event in tensor[1::2]:
        assert event["args"]["raw_bytes"] == 400_000
        assert (event["args"]["wire_bytes"] > 0) == (size > 1)
        assert (event["args"]["predicted_us"] > 0) == (size > 1)  # beside "dur"
        assert event["args"]["wire_bytes"] < 400_000 / 20 * size  # the owner sends its result to all others
    assert [event["name"] for event in phases["allgather.g"]] == ["NEGOTIATE_ALLGATHER", "ALLGATHER"]
    assert "unseen" not in json.dumps(events)
    assert any(event["name"] == "CYCLE_START" for event in events)
    if size > 1:
        # One rank owns the tensor's only partition: the others encode and decode, and it merges.
        work = {event["name"].split()[0] for lane, of in phases.items() if lane[:7] == "compute" for event in of}
        assert set().union(*hvd.allgather_object(work)) == {"encode", "merge", "decode"}
        peers = {event["name"].rsplit(" ", 1)[1] for event in phases["send 0"]}
        assert peers and peers <= {str(peer) for peer in range(size) if peer != rank}
    for lane, of in phases.items():  # what is drawn on one line does not overlap
        of.sort(key=lambda event: event["ts"])
        for before, after in itertools.pairwise(of):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.01, lane


def test_bytes_are_those_that_were_sent(adaptor, hvd, path, rank, size):
    """Of messages inside heads too, of what a codec made of a gradient, and of tensors of this rank's own length."""
    hvd.start_timeline(path)
    hvd.allreduce(adaptor.ones(100), name="small", op=hvd.Sum)
    hvd.allreduce(adaptor.ones(120_000), name="half", compression="fp16", op=hvd.Sum)
    hvd.allreduce(adaptor.full(120_000, 0), name="zeros", compression="threelc", op=hvd.Sum)
    hvd.allgather(adaptor.ones((10 + rank, 3)), name="g")
    hvd.stop_timeline()
    events = own(path, rank)
    names = threads(events)
    phases = [event for event in events if event["ph"] == "X"]
    whole = {names[event["tid"]]: event["args"] for event in phases if event["name"] in ("ALLREDUCE", "ALLGATHER")}
    assert whole["allreduce.small"]["raw_bytes"] == 400
    assert whole["allreduce.small"]["wire_bytes"] == 400 * (size - 1)  # to every other rank at once
    assert whole["allgather.g"]["raw_bytes"] == (10 + rank) * 12
    assert whole["allgather.g"]["wire_bytes"] == (10 + rank) * 12 * (size - 1)
    # As many as the elements, where a run of zeros takes one byte.
    assert whole["allreduce.zeros"]["wire_bytes"] < 120_000 / 50 * size
    for tensor, of in whole.items():
        sent = [e["args"] for e in phases if re.match(rf"send .*{re.escape(tensor)}(?![\w:])", e["name"])]
        assert sum(one["wire_bytes"] for one in sent) == of["wire_bytes"], tensor
        assert {one["codec"] for one in sent} <= {of["codec"]}
    halves = [e["args"] for e in phases if e["name"].split()[0] in ("send", "recv") and "allreduce.half" in e["name"]]
    assert all(one["raw_bytes"] == 2 * one["wire_bytes"] > 0 for one in halves) and (size == 1 or halves)


def test_an_operation_is_in_the_file_when_it_has_ended(adaptor, hvd, path, rank):
    hvd.start_timeline(path, mark_cycles=True)
    for count in (1, 2, 3):
        hvd.allreduce(adaptor.ones(10), name="seen")
        found = [event["name"] for event in own(path, rank) if event["ph"] in "Xi"]
        assert found.count("NEGOTIATE_ALLREDUCE") == found.count("ALLREDUCE") == count
        assert "CYCLE_START" in found
    hvd.stop_timeline()


def test_ranks_are_put_together(adaptor, hvd, path, rank, size):
    hvd.start_timeline(path)
    hvd.allreduce(adaptor.ones(10), name="t")
    hvd.stop_timeline()
    hvd.barrier()
    if rank == 0:
        files = [path, *(f"{path}.{r}" for r in range(1, size))]
        assert trace.main(["merge", *files, "-o", f"{path}.all"]) == 0
        events = json.loads(Path(f"{path}.all").read_text())
        reduced = [event for event in events if event["name"] == "ALLREDUCE"]
        assert sorted(event["pid"] for event in reduced) == list(range(size))
        # All ranks are in the operation at one time: the last began before the first ended.
        assert max(event["ts"] for event in reduced) < min(event["ts"] + event["dur"] for event in reduced) + 5000


def test_of_the_environment(adaptor, hvd, path, rank, monkeypatch):
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_TIMELINE", path)
    hvd.init(timeout_s=20.0)
    hvd.allreduce(adaptor.ones(10), name="t")
    hvd.shutdown()
    assert any(event["name"] == "ALLREDUCE" for event in own(path, rank))
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    hvd.init(timeout_s=20.0)
    hvd.stop_timeline()
    assert not Path("DYNAMIC").exists()


def test_a_file_that_cannot_be_written_is_named(adaptor, hvd):
    with pytest.raises(ValueError, match="timeline /nowhere/trace.json.* cannot be written"):
        hvd.start_timeline("/nowhere/trace.json")
    hvd.allreduce(adaptor.ones(10), name="t")

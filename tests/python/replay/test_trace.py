"""Putting timelines together."""

import json

import pytest

from casync.observe import trace_merge as trace


def timeline(start: int, rank: int) -> list[dict]:
    return [
        {"name": "start_time_since_epoch_in_micros", "args": {"start_time_since_epoch_in_micros": start}, "pid": rank},
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}},
        {"name": "ALLREDUCE", "ph": "X", "pid": rank, "tid": 1, "ts": 10.5, "dur": 2.0},
    ]


def test_times_are_those_of_the_first():
    events = trace.merged([timeline(2000, 0), timeline(1500, 1)])
    assert [event["ts"] for event in events if "ts" in event] == [510.5, 10.5]
    starts = [event["args"] for event in events if event["name"] == "start_time_since_epoch_in_micros"]
    assert starts == [{"start_time_since_epoch_in_micros": 1500}] * 2
    assert trace.merged([]) == []


@pytest.mark.parametrize("content", ["", "[", "{}", "[1]", '[{"name": "other"}]', '{"name": 3}'])
def test_what_is_no_timeline_is_named(content, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(timeline(1, 0)))
    bad.write_text(content)
    assert trace.main(["merge", str(good), str(bad)]) == 1
    assert "bad.json" in capsys.readouterr().err
    assert trace.main(["merge", str(good), str(tmp_path / "none.json")]) == 1


def test_to_standard_output(tmp_path, capsys):
    good = tmp_path / "good.json"
    good.write_text(json.dumps(timeline(1, 0)))
    assert trace.main(["merge", str(good)]) == 0
    assert json.loads(capsys.readouterr().out) == timeline(1, 0)

"""Logs of a real job, four processes over MPI: each replays to the identical actions, and a changed one does not."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import casyncrun

RANKS = 4
JOB = Path(__file__).with_name("job.py")
pytestmark = pytest.mark.timeout(180)

# casync_core/src/record/log_record.hpp: a record's first byte, and what it holds. An action is its length and its text.
EVENT, DECIDE, ACTION = 1, 2, 3
ARRIVED = struct.Struct("<qBIIIIQ")  # time, which event (3), peer, op, sequence, tag, cookie


@pytest.fixture(scope="module", params=["local", "global"])
def logs(request, tmp_path_factory) -> list[Path]:
    """The event log of each rank of one job, under each coordinator."""
    folder = tmp_path_factory.mktemp("logs")
    environ = os.environ | {
        "CASYNC_EVENT_LOG": str(folder / "log.{rank}"),
        "CASYNC_COORDINATOR": request.param,
        "CASYNC_WORKER_THREADS": "2",
    }
    ended = subprocess.run(casyncrun(RANKS, JOB), cwd=folder, env=environ, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [folder / f"log.{rank}" for rank in range(RANKS)]


def replay(*paths: Path) -> subprocess.CompletedProcess[str]:
    """The command, as a person would run it."""
    command = [sys.executable, "-m", "casync", "replay", *map(str, paths)]
    return subprocess.run(command, cwd=paths[0].parent, capture_output=True, text=True)


def records(content: bytes) -> list[tuple[int, int]]:
    """Begin and end of each record after the header."""
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        found.append((at + 4, at + 4 + length))
        at += 4 + length
    return found[1:]


def arrived(content: bytes, begin: int) -> bool:
    """Whether the record at `begin` is the event that a message is here."""
    return content[begin] == EVENT and content[begin + 9] == 3


def test_every_ranks_log_replays_to_the_identical_actions(logs):
    ended = replay(*logs)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == RANKS
    for path, line in zip(logs, lines, strict=True):
        assert line.startswith(f"{path}: ") and line.endswith("actions, all the same")
        assert int(line.split()[3]) > 3_000, line  # actions: 48 tensors in 6 steps


@pytest.mark.parametrize("rank", range(RANKS))
def test_one_changed_event_is_reported_with_its_place(logs, rank, tmp_path):
    """The message that an event says is here is another one: the rank would have accepted that one."""
    content = bytearray(logs[rank].read_bytes())
    found = records(content)
    causes, accepted = 0, []  # events and decides so far; numbers and offsets of arrivals that were accepted at once
    for (begin, _), (after, _) in zip(found, found[1:], strict=False):
        if content[begin] not in (EVENT, DECIDE):
            continue
        causes += 1
        if arrived(content, begin) and content[after] == ACTION and content[after + 5 : after + 13] == b"accept {":
            accepted.append((causes, begin + 1))
    assert len(accepted) > 100
    place, at = accepted[len(accepted) // 2]
    fields = list(ARRIVED.unpack_from(content, at))
    fields[-1] += 1_000_000
    ARRIVED.pack_into(content, at, *fields)
    changed = tmp_path / f"log.{rank}"
    changed.write_bytes(content)
    ended = replay(changed)
    assert ended.returncode == 1
    assert f"{changed}: differs at record {place} (arrived at " in ended.stdout, ended.stdout
    assert f"cookie {fields[-1] - 1_000_000}}}" in ended.stdout and f"cookie {fields[-1]}}}" in ended.stdout


def test_a_missing_event_is_reported(logs, tmp_path):
    """One event in the middle is cut out: from there on the engine knows less than the rank did."""
    content = logs[1].read_bytes()
    found = records(content)
    events = [(begin, end) for begin, end in found if arrived(content, begin)]
    begin, end = events[len(events) // 2]
    shorter = tmp_path / "shorter"
    shorter.write_bytes(content[: begin - 4] + content[end:])
    ended = replay(shorter)
    assert ended.returncode == 1
    assert "differs at record" in ended.stdout

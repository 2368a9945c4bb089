"""What every rank sees when one rank fails: an error that names it, in time, and nobody left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.processes import casyncrun, output_of, wait_until_gone

RANKS = 4
JOB = Path(__file__).with_name("job.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def start(folder: Path, scenario: str, victim: int, transport: str = "auto") -> subprocess.Popen[str]:
    return subprocess.Popen(
        casyncrun(RANKS, JOB, scenario, folder, str(victim)),
        cwd=folder,
        env=os.environ | {"CASYNC_TRANSPORT": transport},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job: subprocess.Popen[str], folder: Path) -> str:
    output = output_of(job)
    assert wait_until_gone(str(folder)) == [], output
    return output


def fault_time(folder: Path) -> float:
    return float(json.loads((folder / "fault").read_text()))


def outcomes(folder: Path, victim: int, output: str) -> dict[int, dict[str, Any]]:
    """What each surviving rank noted."""
    found = {}
    for rank in range(RANKS):
        if rank != victim:
            path = folder / f"outcome.{rank}"
            assert path.exists(), f"rank {rank} noted no error\n{output}"
            found[rank] = json.loads(path.read_text())
    return found


# Of rank 0: a ring neighbour, not one, and the root itself.
@pytest.mark.parametrize(("victim", "transport"), [(1, "mpi"), (2, "mpi"), (0, "mpi"), (1, "tcp"), (0, "tcp")])
def test_a_killed_rank_is_named_on_every_rank(tmp_path: Path, victim: int, transport: str) -> None:
    job = start(tmp_path, "kill", victim, transport)
    output = finish(job, tmp_path)
    for rank, outcome in outcomes(tmp_path, victim, output).items():
        assert float(outcome["time"]) - fault_time(tmp_path) < 10, f"rank {rank}"
        assert outcome["kind"] == "PeerFailureError" and f"rank {victim}" in str(outcome["text"]), outcome
    assert job.returncode == 128 + signal.SIGKILL
    assert f"rank {victim}" in output and "SIGKILL" in output


@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_a_stopped_rank_is_named_on_every_rank(tmp_path: Path, transport: str) -> None:
    job = start(tmp_path, "stop", 2, transport)
    output = finish(job, tmp_path)
    for rank, outcome in outcomes(tmp_path, 2, output).items():
        assert float(outcome["time"]) - fault_time(tmp_path) < 10, f"rank {rank}"
        assert "rank 2" in str(outcome["text"]), outcome
    assert job.returncode != 0


@pytest.mark.parametrize("where", ["barrier", "negotiation"])
def test_a_death_before_the_others_are_answered(tmp_path: Path, where: str) -> None:
    job = start(tmp_path, where, 3)
    output = finish(job, tmp_path)
    for outcome in outcomes(tmp_path, 3, output).values():
        assert float(outcome["time"]) - fault_time(tmp_path) < 10
        assert outcome["kind"] == "PeerFailureError" and "rank 3" in str(outcome["text"]), outcome


def test_a_death_in_init_ends_the_others_with_its_name(tmp_path: Path) -> None:
    job = start(tmp_path, "init", 1)
    output = finish(job, tmp_path)
    assert time.time() - fault_time(tmp_path) < 15
    assert job.returncode == 128 + signal.SIGKILL
    for rank in (0, 2, 3):
        told = [line for line in output.splitlines() if line.startswith(f"[{rank}]<stderr>")]
        assert any("rank 1" in line for line in told), output


def test_an_exception_stops_the_others_with_its_text(tmp_path: Path) -> None:
    job = start(tmp_path, "exception", 1)
    output = finish(job, tmp_path)
    for outcome in outcomes(tmp_path, 1, output).values():
        assert float(outcome["time"]) - fault_time(tmp_path) < 2
        assert outcome["kind"] == "AbortedError"
        assert "the data of this rank is broken" in str(outcome["text"]) and "rank 1" in str(outcome["text"])
    assert job.returncode != 0 and "rank 1" in output


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="netlab needs root and iproute2")
@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_a_link_that_goes_down_is_named_on_every_rank(tmp_path: Path, transport: str) -> None:
    netlab = pytest.importorskip("benchmarks.netlab")
    with netlab.Netlab(hosts=RANKS, rate="1gbit") as lab:
        argv = [sys.executable, str(JOB), "link", str(tmp_path), "-1"]
        job = lab.start(RANKS, argv, {"CASYNC_TRANSPORT": transport}, casyncrun_args=["-x", "CASYNC_TRANSPORT"])
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("running.*"))) < RANKS:
            assert time.monotonic() < deadline, job.stdout() + job.stderr()
            time.sleep(0.05)
        down = time.time()
        lab.link_down("h3")
        while len(list(tmp_path.glob("outcome.*"))) < RANKS and time.time() < down + 20:
            time.sleep(0.05)
        job.stop()
        found = outcomes(tmp_path, -1, job.stdout() + job.stderr())
    for rank, outcome in found.items():
        assert float(outcome["time"]) - down < 10, f"rank {rank}"
        named = "rank 2" if rank != 2 else "rank "  # cut off, rank 2 sees that all others are gone
        assert named in str(outcome["text"]), outcome

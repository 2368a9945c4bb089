"""How jobs start and end: a rank that never comes, or leaves before the others, ends the job with its name, in time."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from casync.launcher.mpirun import find
from support.processes import casyncrun, output_of, wait_until_gone

RANKS = 3
JOB = Path(__file__).with_name("life_job.py")
HOST = socket.gethostname()
pytestmark = pytest.mark.timeout(150)


class Ended:
    """A job that has ended: its status and output, what its ranks noted, and seconds from the fault to the end."""

    def __init__(self, folder: Path, status: int, output: str) -> None:
        self.status, self.output = status, output
        fault = folder / "fault"
        self.fault = float(json.loads(fault.read_text())) if fault.exists() else time.time()
        self.seconds = time.time() - self.fault
        notes = {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob("outcome.*")}
        self.outcomes = {rank: (float(note["time"]) - self.fault, str(note["text"])) for rank, note in notes.items()}


def run_command(folder: Path, command: list[str], **settings: str) -> Ended:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = output_of(process)
    ended = Ended(folder, process.returncode, output)
    assert wait_until_gone(str(folder)) == [], output
    return ended


def run(folder: Path, scenario: str, victim: int, *flags: str, **settings: str) -> Ended:
    return run_command(folder, casyncrun(RANKS, JOB, scenario, folder, str(victim), flags=flags), **settings)


# How jobs start.


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_is_stopped_before_init_ends_the_job(tmp_path: Path, victim: int) -> None:
    job = run(tmp_path, "stops before init", victim, "--start-timeout", "8")
    assert job.status == 1
    told = f"rank {victim} on host {HOST} was stopped by SIGSTOP before it was through init(), for 8 s"
    assert f"casyncrun: the first rank to fail: {told}" in job.output
    assert job.seconds < 40


def test_a_rank_that_goes_before_init_ends_the_job(tmp_path: Path) -> None:
    job = run(tmp_path, "goes before init", 1)
    assert job.status == 1
    assert f"rank 1 on host {HOST} exited with status 0 before it came to init(), where rank" in job.output
    assert job.seconds < 40


@pytest.mark.slow
def test_a_rank_that_loads_data_is_named_and_waited_for(tmp_path: Path) -> None:
    job = run(tmp_path, "loads data", 1, "--start-timeout", "4", CASYNC_STALL_WARNING_SECONDS="2")
    assert job.status == 0, job.output
    warnings = [line for line in job.output.splitlines() if re.search(r"waited 2(\.\d+)? s in init\(\) for", line)]
    assert len(warnings) == 1 and f"rank 1 on host {HOST}" in warnings[0], job.output


def test_a_rank_that_never_comes_to_init_ends_the_job(tmp_path: Path) -> None:
    job = run(tmp_path, "never comes", 1, CASYNC_TIMEOUT_SECONDS="6")
    assert job.status == 1
    told = f"rank 1 on host {HOST} did not come to init() within 6 s (CASYNC_TIMEOUT_SECONDS), where ranks 0, 2 waited"
    assert told in job.output
    assert job.seconds < 40


@pytest.mark.slow
def test_without_casyncrun_a_rank_that_waits_in_init_ends_by_itself(tmp_path: Path) -> None:
    mpirun = [find(os.environ).mpirun, *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    command = [*mpirun, "-n", "2", "--map-by", "slot:OVERSUBSCRIBE", sys.executable, str(JOB), "never comes"]
    settings = {"CASYNC_TIMEOUT_SECONDS": "6", "CASYNC_STALL_WARNING_SECONDS": "2"}
    job = run_command(tmp_path, [*command, str(tmp_path), "1"], **settings)
    assert job.status != 0
    assert "init() has waited 2 s: it returns when all processes that mpirun started have called it" in job.output
    assert "init() has waited 6 s (CASYNC_TIMEOUT_SECONDS)" in job.output
    assert job.seconds < 40


# How they end.


@pytest.mark.parametrize("how", ["returns", pytest.param("shuts down", marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_leaves_early_is_named_on_every_rank(tmp_path: Path, victim: int, how: str) -> None:
    job = run(tmp_path, how, victim)
    assert sorted(job.outcomes) == [rank for rank in range(RANKS) if rank != victim], job.output
    for seconds, text in job.outcomes.values():
        assert seconds < 10 and f"rank {victim} has shut down" in text
    assert job.status == 1 and job.seconds < 40
    assert f"AbortedError: rank {victim} has shut down" in job.output.splitlines()[-1]


def test_a_job_with_a_stopped_rank_ends_as_soon_as_the_others_have(tmp_path: Path) -> None:
    job = run(tmp_path, "stops in training", 2, CASYNC_PEER_TIMEOUT_SECONDS="4")
    assert sorted(job.outcomes) == [0, 1], job.output
    last = max(seconds for seconds, _ in job.outcomes.values())
    assert all("rank 2" in text for _, text in job.outcomes.values())
    own = [line for line in job.output.splitlines() if line.startswith("casyncrun: ") and signal.SIGSTOP.name in line]
    was, is_still = own  # said when it happens, and once at the end
    assert was == f"casyncrun: rank 2 on host {HOST} was stopped by SIGSTOP"
    assert is_still == job.output.splitlines()[-1]
    assert is_still.startswith(f"casyncrun: the first rank to fail: rank 2 on host {HOST} is stopped by SIGSTOP")
    assert job.seconds - last < 14  # the launcher has a grace of 15 s for ranks that can leave by themselves


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_is_stopped_when_all_others_leave_ends_the_job(tmp_path: Path, victim: int) -> None:
    job = run(tmp_path, "stops at the end", victim, "--start-timeout", "8")
    assert job.status == 1
    assert f"rank {victim} on host {HOST} was stopped by SIGSTOP while all others have left, for 8 s" in job.output
    assert job.seconds < 40


def test_a_rank_that_does_not_leave_mpi_ends_the_job(tmp_path: Path) -> None:
    job = run(tmp_path, "goes without leaving", 1)
    assert job.status == 1
    assert f"rank 1 on host {HOST} exited with status 0 but did not leave MPI" in job.output
    assert job.seconds < 40

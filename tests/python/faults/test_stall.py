"""A rank that does not submit is named, with the tensor and the lines where the others did; late is not too late."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support.processes import casyncrun

RANKS = 4
JOB = Path(__file__).with_name("late_job.py")
LINES = JOB.read_text().splitlines()
SUM = RANKS * (RANKS + 1) / 2
LATE = [0, pytest.param(2, marks=pytest.mark.slow)]  # 0 keeps the book itself
pytestmark = [pytest.mark.timeout(150), pytest.mark.parametrize("late", LATE)]


def run(folder: Path, scenario: str, late: int, **settings: str) -> list[list[object]]:
    """What each rank got."""
    ended = subprocess.run(
        casyncrun(RANKS, JOB, scenario, folder, str(late)),
        cwd=folder,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout
    return [json.loads((folder / f"outcome.{rank}").read_text()) for rank in range(RANKS)]


def place(rank: int) -> str:
    """Where `rank` submits."""
    marker = "# even ranks submit here" if rank % 2 == 0 else "# odd ranks submit here"
    return f"{JOB}:{next(number for number, text in enumerate(LINES, 1) if text.endswith(marker))}"


def check(report: str, tensor: str, late: int) -> None:
    """`report` names the tensor, the missing rank, and for every other rank the line that submitted it."""
    first, missing, *others = report.splitlines()
    assert re.fullmatch(rf"tensor allreduce\.{tensor} was submitted .* waits since \d+ s .*", first), report
    assert missing == f"  missing ranks: {late}", report
    expected = [f"  rank {rank} submitted it at {place(rank)}" for rank in range(RANKS) if rank != late]
    assert others[: RANKS - 1] == expected, report


def test_a_late_rank_is_reported_and_then_taken_in(tmp_path: Path, late: int) -> None:
    results = run(tmp_path, "warned", late, CASYNC_STALL_WARNING_SECONDS="1")
    assert results == [[SUM] * 4] * RANKS
    reports = [(tmp_path / f"report.{number}").read_text() for number in range(4)]
    for report, tensor in zip(reports, ["small", "small", "large", "large"], strict=True):
        check(report, tensor, late)
    assert not (tmp_path / "report.4").exists(), "each stall is reported once"


def test_a_rank_that_is_too_late_ends_the_operation_with_the_report_and_the_session_goes_on(
    tmp_path: Path, late: int
) -> None:
    results = run(tmp_path, "timed out", late, CASYNC_STALL_WARNING_SECONDS="60", CASYNC_TIMEOUT_SECONDS="3")
    for rank, (small, after_small, large, after_large) in enumerate(results):
        assert after_small == after_large == SUM
        check(str(small), "small", late)
        check(str(large), "large", late)
        assert small == results[0][0] and large == results[0][2], f"rank {rank} was told something else"

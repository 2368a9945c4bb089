"""A section of the tests is ended when nothing is reported for too long, and by nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.files import load

watch = load("tools/watch.py")


def test_only_the_newest_report_counts() -> None:
    assert not watch.is_silent(1300.0, [0.0, 1000.0, 3.0], 300.0)
    assert watch.is_silent(1300.1, [0.0, 1000.0, 3.0], 300.0)


def test_a_section_that_says_nothing_is_ended_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hangs.running").write_text("test_of_something[1]")
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(100)"]
    assert watch.run_watched("hangs", command, tmp_path, tmp_path, silence=3.0)[0] == watch.ENDED
    said = capfd.readouterr().out
    assert "begun" in said
    assert "hangs: nothing was reported for 3 s, ended. It was at: test_of_something[1]" in said


def test_a_section_that_takes_long_and_reports_is_left_alone(tmp_path: Path) -> None:
    """By a line every second, then by a file every second."""
    program = """
import pathlib, time
for i in range(5):
    print(i, flush=True)
    time.sleep(1)
for i in range(5):
    pathlib.Path("report").write_text(str(i))
    time.sleep(1)
raise SystemExit(3)
"""
    status, last_lines = watch.run_watched("slow", [sys.executable, "-c", program], tmp_path, tmp_path, silence=4.0)
    assert status == 3
    assert last_lines == ["0", "1", "2", "3", "4"]

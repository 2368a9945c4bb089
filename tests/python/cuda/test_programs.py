"""Whole programs on a real GPU, which two ranks share (programs.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs.py")


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_programs_are_right(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    command = ["casyncrun", "-np", "2", "--output-filename", str(tmp_path), sys.executable, str(PROGRAMS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    reports = [
        line.partition("{")[1] + line.partition("{")[2] for line in done.stdout.splitlines() if '{"program"' in line
    ]
    wrong = [report for report in map(json.loads, reports) if report["wrong"]]
    assert reports and not wrong, "\n\n".join(f"{report['program']}: {report['wrong']}" for report in wrong)
    assert done.returncode == 0, done.stderr

"""Texts that are longer than a message of one rank to another end no process, and the others hear them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.processes import casyncrun, output_of, wait_until_gone

JOB = Path(__file__).with_name("text_job.py")
pytestmark = pytest.mark.timeout(150)


def run(folder: Path, scenario: str, transport: str) -> tuple[int, str]:
    process = subprocess.Popen(
        casyncrun(2, JOB, scenario, folder),
        cwd=folder,
        env=os.environ | {"CASYNC_TRANSPORT": transport},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = output_of(process)
    assert wait_until_gone(str(folder)) == [], output[-5000:]
    assert "terminate called" not in output
    return process.returncode, output


@pytest.mark.parametrize("transport", ["mpi", pytest.param("tcp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("scenario", ["raises", "aborts"])
def test_a_long_text_is_cut_and_heard(tmp_path: Path, scenario: str, transport: str) -> None:
    status, output = run(tmp_path, scenario, transport)
    assert status == 1, output[-5000:]
    heard = (tmp_path / "outcome.0").read_text()
    assert "\N{EURO SIGN}" * 1000 in heard and "more bytes)" in heard
    assert len(heard.encode()) < 5000


@pytest.mark.parametrize("transport", ["mpi", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_long_name_is_as_good_as_another(tmp_path: Path, transport: str) -> None:
    status, output = run(tmp_path, "name", transport)
    assert status == 0, output[-5000:]
    for rank in (0, 1):
        assert "(10,)" in (tmp_path / f"outcome.{rank}").read_text()

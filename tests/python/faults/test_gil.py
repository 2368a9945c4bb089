"""Another thread of a rank's program keeps the GIL, as a C extension may: the rank makes progress all the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.processes import casyncrun, output_of, wait_until_gone

JOB = Path(__file__).with_name("gil_job.py")


@pytest.mark.timeout(150)
@pytest.mark.parametrize("transport", ["mpi", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_thread_that_keeps_the_gil_ends_no_job(tmp_path: Path, transport: str) -> None:
    """It is kept for longer than a rank may be silent."""
    process = subprocess.Popen(
        casyncrun(2, JOB, tmp_path, "4"),
        cwd=tmp_path,
        env=os.environ | {"CASYNC_TRANSPORT": transport, "CASYNC_PEER_TIMEOUT_SECONDS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = output_of(process)
    assert wait_until_gone(str(tmp_path)) == [], output
    assert process.returncode == 0, output
    assert [json.loads((tmp_path / f"outcome.{rank}").read_text()) for rank in (0, 1)] == [1.0, 1.0]

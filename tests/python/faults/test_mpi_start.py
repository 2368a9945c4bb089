"""A rank that dies while MPI starts is named on every other rank."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support.processes import casyncrun, output_of

PROGRAM = """
import ctypes, os, signal
import casync.numpy as hvd
from casync.transport import mpi
if os.environ["CASYNC_RANK"] == "1":
    mpi.load()  # and with it libmpi
    MPI_THREAD_MULTIPLE = 3
    ctypes.CDLL("libmpi.so.40").MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    os.kill(os.getpid(), signal.SIGKILL)
hvd.init()
"""


def test_a_rank_that_dies_between_mpi_init_and_the_first_message_is_named(tmp_path: Path) -> None:
    job = subprocess.Popen(
        casyncrun(3, "-c", PROGRAM),
        cwd=tmp_path,
        env=os.environ | {"CASYNC_TRANSPORT": "mpi"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = output_of(job)
    assert job.returncode == 137, output
    assert "the first rank to fail: rank 1 on host" in output, output
    for rank in (0, 2):
        assert re.search(rf"\[{rank}\]<stderr>: .*PeerFailureError: rank 1 has died: MPI_", output), output

"""Programs that use the stand-in, each in processes of its own: a driver that was found stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.processes import casyncrun

BEGIN = f"""
import sys
sys.path[:0] = {sys.path!r}
import numpy
from casync import errors
from support.bindings import binding_of
from support.standin import driver, tensors

hvd = binding_of("standin").hvd
script = driver.loaded()


def refused(call):
    '''Print the error of a call in one line.'''
    try:
        call()
    except errors.CasyncError as error:
        print(hvd.rank(), type(error).__name__, error.kind, error.tensor, error, flush=True)


hvd.init()
w = tensors.from_host(numpy.ones(4, "float32"))
"""
"""What a program has before its own lines: an initialised `hvd`, the stand-in's `script`, and a tensor `w` of four
ones.
"""


def environment(**variables: str) -> dict[str, str]:
    """Ours, with the installed casync before the checkout's, and no driver but the one that `variables` names."""
    kept = {name: value for name, value in os.environ.items() if name != "CASYNC_CUDA_DRIVER"}
    return kept | {"PYTHONSAFEPATH": "1"} | variables


def said(program: str, **variables: str) -> str:
    """What `program` prints, or the last line of its traceback."""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]


def job(ranks: int, program: str, folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """`program` on all of several ranks, to the end. casyncrun ends with `status`."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    command = casyncrun(ranks, path)
    ended = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended


def run(ranks: int, program: str, folder: Path, status: int = 0) -> list[str]:
    """The lines that all ranks of such a job print, sorted."""
    lines = job(ranks, program, folder, status).stdout.splitlines()
    return sorted(line.partition(">:")[2] for line in lines)

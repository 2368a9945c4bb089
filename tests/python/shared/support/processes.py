"""Jobs as processes: how one is started, how it ends, and what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def casyncrun(ranks: int, *program: str | Path, flags: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a Python program, with its arguments, on `ranks` ranks."""
    start = [sys.executable, "-m", "casync", "run", "-np", str(ranks), *flags, "--"]
    return [*start, sys.executable, *map(str, program)]


def left(mark: str) -> list[str]:
    """Number and command line of each other process that exists and has `mark` on its command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line and int(entry.name) != os.getpid():
            found.append(f"{entry.name} {line}")
    return found


def wait_until_gone(mark: str, seconds: float = 5) -> list[str]:
    """What is left after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left(mark)


def output_of(job: subprocess.Popen[str], timeout: float = 100) -> str:
    """What a job has written when it has ended; it is killed when that is not in time."""
    try:
        return job.communicate(timeout=timeout)[0]
    finally:
        if job.poll() is None:
            job.kill()
            job.communicate()

"""Runs one section of the tests and ends it when nothing was reported for too long, never by its total time.

A section reports by what it prints and by the files that its runners write: pytest's current test stands in a file that
tests/python/conftest.py keeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

SILENCE = 300.0  # seconds without a report after which a section counts as hanging
ENDED = 124
_LOOK = 2.0  # seconds between two looks
_GRACE = 20.0  # seconds that a section has to end


def is_silent(now: float, reports: Sequence[float], limit: float = SILENCE) -> bool:
    """Whether the newest of the `reports` is older than `limit`; all in seconds of one clock."""
    return now - max(reports) > limit


def newest_change(folder: Path) -> float:
    """When a file below `folder` was last written, in seconds of `time.time()`; 0 if there is none."""
    changes = [0.0]
    for path in folder.rglob("*"):
        try:
            changes.append(path.stat().st_mtime)
        except FileNotFoundError:  # gone since
            continue
    return max(changes)


class _Echo(threading.Thread):
    """Passes a section's output on, and notes when there last was some."""

    def __init__(self, source: int) -> None:
        super().__init__(daemon=True)
        self._source = source
        self.last = time.time()
        self._tail = b""

    def run(self) -> None:
        while data := os.read(self._source, 1 << 16):
            self.last = time.time()
            self._tail = (self._tail + data)[-2000:]
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def last_lines(self) -> list[str]:
        return self._tail.decode(errors="replace").strip().splitlines()


def run_watched(
    name: str, command: Sequence[str], folder: Path, reports: Path, silence: float = SILENCE
) -> tuple[int, list[str]]:
    """The exit status of `command`, run in `folder`, and the last lines of its output.

    The status is 124 if it was ended, with a line that says where it was.

    `reports` is where its runners write files.
    """
    # A group of its own, so that a section that hangs ends with everything it started.
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    echo = _Echo(process.stdout.fileno())
    begun = time.time()
    echo.start()
    try:
        while True:
            try:
                status = process.wait(_LOOK)
                break
            except subprocess.TimeoutExpired:
                if is_silent(time.time(), [begun, echo.last, newest_change(reports)], silence):
                    status = _end(name, process, reports, echo, silence)
                    break
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise
    echo.join(_GRACE)
    return status, echo.last_lines()


def _end(name: str, process: subprocess.Popen[bytes], reports: Path, echo: _Echo, silence: float) -> int:
    running = sorted(path.read_text(encoding="utf-8") for path in reports.glob(f"{name}*.running"))
    last = running or echo.last_lines()[-1:]
    print(f"\n{name}: nothing was reported for {silence:.0f} s, ended. It was at: {'; '.join(last)}", flush=True)
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ENDED

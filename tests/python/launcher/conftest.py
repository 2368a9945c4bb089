"""Runs the real casyncrun with small scripts, and finds what a job left behind by a marker on its command line."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import casync
from casync.launcher.mpirun import MpiNotFound, find
from support import processes

ROOT = Path(casync.__file__).resolve().parent.parent


def environment() -> dict[str, str]:
    """Ours, with the casync under test importable from every folder."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


class Runner:
    """`run` waits for a casyncrun, `start` does not. Every process of either carries `marker` on its command line."""

    def __init__(self, folder: Path) -> None:
        self.marker = f"marker-{uuid.uuid4().hex}"
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    environment = staticmethod(environment)

    def command(self, script: str, *args: str) -> list[str]:
        """The casyncrun command that runs a Python script with the marker as its argument."""
        path = self.folder / f"script{len(list(self.folder.glob('script*')))}.py"
        path.write_text(textwrap.dedent(script), encoding="utf-8")
        return [sys.executable, "-m", "casync", "run", *args, sys.executable, str(path), self.marker]

    def start(self, script: str, *args: str) -> subprocess.Popen[str]:
        """Start a job; its stdout and stderr are pipes."""
        return self.start_command(self.command(script, *args))

    def start_command(self, command: list[str]) -> subprocess.Popen[str]:
        """The same for a command that is not a script's."""
        process = subprocess.Popen(
            command,
            env=environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, *args: str, timeout: float = 40) -> subprocess.CompletedProcess[str]:
        """Run a job to its end."""
        process = self.start(script, *args)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left(self) -> list[str]:
        """Command lines of processes of this test's jobs that are alive now."""
        return processes.left(self.marker)

    def wait_until_gone(self, seconds: float = 5) -> list[str]:
        """What is still alive after at most `seconds`."""
        return processes.wait_until_gone(self.marker, seconds)

    def close(self) -> None:
        """End what a failed test left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def casyncrun(tmp_path: Path) -> Iterator[Runner]:
    """Runs jobs, and asserts afterwards that none left a process."""
    try:
        find(os.environ)
    except MpiNotFound as error:
        pytest.skip(str(error))
    runner = Runner(tmp_path)
    yield runner
    runner.close()
    assert runner.wait_until_gone() == []


@pytest.fixture
def wait_for() -> Callable[[subprocess.Popen[str], str, int], None]:
    """Reads a job's stdout until a text has come a number of times."""

    def wait(process: subprocess.Popen[str], text: str, count: int) -> None:
        assert process.stdout is not None
        while count:
            line = process.stdout.readline()
            assert line, "the job ended early"
            count -= text in line

    return wait

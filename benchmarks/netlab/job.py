"""A running job on a lab: processes that were started together and end together."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.netlab.system import STOP_SECONDS, die_with_parent, stop

if TYPE_CHECKING:
    from benchmarks.netlab.lab import Netlab

__all__ = ["Counters", "Job", "RunResult"]


@dataclass(frozen=True)
class Counters:
    """Bytes that one host's NIC received and sent."""

    rx_bytes: int
    tx_bytes: int

    def __sub__(self, other: Counters) -> Counters:
        return Counters(self.rx_bytes - other.rx_bytes, self.tx_bytes - other.tx_bytes)


@dataclass(frozen=True)
class RunResult:
    """How a job ended. `counters` is what each NIC carried meanwhile, mpirun's own traffic included."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    counters: Mapping[str, Counters]
    timed_out: bool = False


class Job:
    """Started at construction; `wait` ends it in any case. `commands` are (argv, environment) pairs."""

    def __init__(self, lab: Netlab, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], capture: bool) -> None:
        self._lab = lab
        self._before = lab.counters()
        self._folder = Path(tempfile.mkdtemp(prefix="output-", dir=lab.folder))
        self.processes: list[subprocess.Popen[str]] = []
        self._began = time.monotonic()
        for index, (argv, env) in enumerate(commands):
            # Files, not pipes: nobody reads while the job runs, and a full pipe would stop it.
            out = (self._folder / f"{index}.stdout").open("w") if capture else None
            err = (self._folder / f"{index}.stderr").open("w") if capture else None
            self.processes.append(
                subprocess.Popen(
                    list(argv),
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    text=True,
                    preexec_fn=die_with_parent,
                )
            )
            for file in (out, err):
                if file is not None:
                    file.close()

    def stdout(self) -> str:
        """What the processes have written to stdout so far, one process after the other."""
        return self._written("stdout")

    def stderr(self) -> str:
        """What the processes have written to stderr so far."""
        return self._written("stderr")

    def _written(self, stream: str) -> str:
        files = [self._folder / f"{index}.{stream}" for index in range(len(self.processes))]
        return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files if file.exists())

    def wait(self, timeout: float) -> RunResult:
        """Wait until all have ended; after `timeout` seconds, or soon after one of several failed, end the rest."""
        deadline = self._began + timeout
        ended_by_us = failed = False
        try:
            while any(process.poll() is None for process in self.processes):
                if not failed and any(process.returncode not in (None, 0) for process in self.processes):
                    failed = True
                    deadline = min(deadline, time.monotonic() + STOP_SECONDS)
                if time.monotonic() > deadline:
                    ended_by_us = True
                    break
                time.sleep(0.02)
            seconds = time.monotonic() - self._began
        finally:
            self.stop()
        after = self._lab.counters()
        status = next((process.returncode for process in self.processes if process.returncode != 0), 0)
        return RunResult(
            status=status,
            stdout=self.stdout(),
            stderr=self.stderr(),
            seconds=seconds,
            counters={name: after[name] - self._before[name] for name in after},
            timed_out=ended_by_us and not failed,
        )

    def stop(self) -> None:
        """End all processes of the job, and then whatever still lives on the hosts."""
        for process in self.processes:
            stop(process)
        self._lab.kill_all()

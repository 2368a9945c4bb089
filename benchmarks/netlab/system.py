"""How the lab touches the machine: commands with a time limit, processes that do not outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

__all__ = [
    "COMMAND_SECONDS",
    "STOP_SECONDS",
    "NetlabError",
    "die_with_parent",
    "environment",
    "kill_inside",
    "run",
    "stop",
]

COMMAND_SECONDS = 20.0
STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1


class NetlabError(RuntimeError):
    """The lab cannot be made or used here; the text says why."""


def run(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str:
    """Run a command to its end; its stdout, or NetlabError with its stderr."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetlabError(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        raise NetlabError(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def stop(process: subprocess.Popen[str]) -> None:
    """casyncrun ends its job on SIGTERM; what does not listen is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_inside(namespace: str) -> None:
    """End every process that lives in a namespace, including those that one of them starts meanwhile."""
    for _ in range(20):
        pids = [int(word) for word in run(("ip", "netns", "pids", namespace)).split()]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a job: ours, and `env` over it."""
    return {**os.environ, **(env or {})}


def die_with_parent() -> None:
    """In a child before it starts: end (politely, it may have a job to end itself) when our process dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

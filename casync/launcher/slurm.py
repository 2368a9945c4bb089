"""Inside a Slurm allocation: which hosts it has, what starts the ranks, and srun's line where that is srun.

All of it is pure, environment and facts in, values out: tests need no Slurm. `find_srun` alone looks at the machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from casync.launcher.hosts import Host
from casync.rendezvous.slurm_hosts import HostError, expand_hosts

__all__ = ["Srun", "allocation", "compose_srun", "find_srun", "is_better_than_mpirun"]

_PROBE_SECONDS = 20


@dataclass(frozen=True)
class Srun:
    """The srun that was found, and whether it offers PMIx, by which the ranks' MPI finds them."""

    path: str
    pmix: bool


def allocation(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the allocation and their tasks; none outside of one. HostError for what cannot be read."""
    listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if "SLURM_JOB_ID" not in environ or not listed:
        return ()
    names = expand_hosts(listed)
    tasks = environ.get("SLURM_TASKS_PER_NODE")
    counts = _expand_counts(tasks) if tasks else [1] * len(names)
    if len(counts) != len(names):
        raise HostError(f"Slurm names {len(names)} hosts ({listed}) and task counts for {len(counts)} ({tasks})")
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=True))


def _expand_counts(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1."""
    counts = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match is None:
            raise HostError(f"SLURM_TASKS_PER_NODE={text!r}: {item!r} is not COUNT or COUNT(xTIMES)")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def is_better_than_mpirun(srun: Srun | None, mpirun: bool, mpirun_knows_slurm: bool, other_hosts: bool) -> bool:
    """Whether srun is to start the ranks. mpirun, where it can reach the hosts, also tells survivors of a dead rank."""
    if srun is None or not srun.pmix:
        return False
    return not mpirun or (other_hosts and not mpirun_knows_slurm)


def compose_srun(srun: str, num_proc: int, slots: Sequence[Host], command: Sequence[str]) -> list[str]:
    """The srun line: hosts filled in order; a rank that fails ends nobody, since casyncrun decides that."""
    nodes, left = 0, num_proc
    while left > 0:
        left -= slots[nodes].slots
        nodes += 1
    return [
        srun,
        "--mpi=pmix",
        f"--nodes={nodes}",
        f"--ntasks={num_proc}",
        "--distribution=block",
        "--overlap",  # also in a shell that srun itself started
        "--export=ALL",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        *command,
    ]


def find_srun(environ: Mapping[str, str]) -> Srun | None:
    """The srun on PATH."""
    path = shutil.which("srun", path=environ.get("PATH"))
    if path is None:
        return None
    try:
        listed = subprocess.run(
            [path, "--mpi=list"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return Srun(path, False)
    return Srun(path, re.search(r"\bpmix", listed.stdout + listed.stderr) is not None)

"""Jobs of ranks that run programs, and what is made of their reports.

One job runs all cells of a door, one after the other, since starting ranks costs more than most programs. Where a cell
fails, crashes or hangs, new processes go on with the next one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.ports import free_port

HERE = Path(__file__).parent
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "CASYNC_", "HOROVOD_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
SILENCE = 180.0  # seconds after which a job is said to hang


@dataclass(frozen=True)
class Asked:
    """A cell as job.py wants it."""

    situation: str
    door: str
    family: str
    module: str
    verdict: str
    error: str
    apart: bool  # the program ends processes


@dataclass
class Outcome:
    """What became of a cell: a line for each run of each rank, or how its job ended."""

    ends: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[tuple[int, int], dict[str, np.ndarray]] = field(default_factory=dict)  # (run, rank) -> name -> values
    broken: str = ""
    statuses: list[int] = field(default_factory=list)  # of a program that ends processes
    said: str = ""  # by rank 0, then


class Ranks:
    """The processes of one job."""

    def __init__(self, python: str, folder: Path, ranks: int) -> None:
        port = str(free_port())
        self.folder, self.size = folder, ranks
        self.processes = []
        for rank in range(ranks):
            environ = CLEAN | {
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            with open(folder / f"rank{rank}.log", "w", encoding="utf-8") as log:
                command = [python, str(HERE / "job.py"), str(folder)]
                self.processes.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=folder))

    def wait(self) -> str:
        """Until all have ended; "" or why they were ended."""
        size, since = -1, time.monotonic()
        while any(process.poll() is None for process in self.processes):
            time.sleep(0.02)
            now = sum(path.stat().st_size for path in self.folder.glob("rank*.*"))
            if now != size:
                size, since = now, time.monotonic()
            failed = [process.returncode for process in self.processes if process.returncode]
            if time.monotonic() - since > (SILENCE / 6 if failed else SILENCE):
                return self._end()
        return ""

    def _end(self) -> str:
        for act, seconds in ((signal.SIGUSR1, 0.5), (signal.SIGKILL, 0)):
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(act)
            time.sleep(seconds)
        return f"no word for {SILENCE:.0f} s"

    def lines(self, rank: int) -> list[dict[str, Any]]:
        report = self.folder / f"rank{rank}.jsonl"
        return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def run_all(cells: Sequence[Asked], folder: Path, ranks: int, python: str = sys.executable) -> dict[Asked, Outcome]:
    """Run the cells in as few jobs as can be; what came of each."""
    outcomes = {cell: Outcome() for cell in cells}
    left = sorted(cells, key=lambda cell: cell.apart)
    while left:
        place = folder / f"job{len(cells) - len(left)}"
        place.mkdir()
        (place / "cells.json").write_text(json.dumps([asdict(cell) for cell in left]))
        processes = Ranks(python, place, ranks)
        why = processes.wait()
        statuses = [process.wait() for process in processes.processes]
        last = _read(processes, left, outcomes)
        if not any(statuses):
            break
        broken = outcomes[left[last]]
        if left[last].apart and not why:
            broken.statuses, broken.said = statuses, _tail(place, 0)
        elif not any("error" in end for end in broken.ends):
            tails = "\n".join(f"--- rank {rank}\n{_tail(place, rank)}" for rank in range(ranks))
            broken.broken = f"{why or 'crashed'}: exit statuses {statuses}\n{tails}"
        left = left[last + 1 :]
    return outcomes


def _read(processes: Ranks, cells: Sequence[Asked], outcomes: dict[Asked, Outcome]) -> int:
    """Put what the ranks have written into `outcomes`. The number of the last cell that was begun by all."""
    last = len(cells) - 1
    for rank in range(processes.size):
        lines = processes.lines(rank)
        for line in lines:
            outcome = outcomes[cells[line["cell"]]]
            if line["what"] == "end":
                outcome.ends.append({**line, "rank": rank})
                run = int(line["codec"] != "none")
                with np.load(processes.folder / f"{line['cell']}.{run}.{rank}.npz") as arrays:
                    outcome.numbers[run, rank] = dict(arrays)
        last = min(last, max((line["cell"] for line in lines), default=0))
    return last


def _tail(folder: Path, rank: int) -> str:
    return (folder / f"rank{rank}.log").read_text(errors="replace")[-4000:]


# --- what must hold ---------------------------------------------------------------------------------------------------


def faults(outcome: Outcome, ranks: int, far: float = 1e-4) -> list[str]:
    """Why a cell is not right: nothing, if it is. `far`: between two numbers, in parts of the largest."""
    if outcome.broken:
        return [outcome.broken]
    found = [f"rank {end['rank']}, codec {end['codec']}: {end['trace']}" for end in outcome.ends if "error" in end]
    if found:
        return found
    if not outcome.ends:
        return ["it was not run"]
    for run, rank in sorted(outcome.numbers):
        values = outcome.numbers[run, rank]
        if run == 0 or part(values, "wanted"):
            found += [f"rank {rank}: {fault}" for fault in _far(values, far)]
    for run in sorted({run for run, _ in outcome.numbers}):
        of_run = [outcome.numbers[run, rank] for rank in range(ranks)]
        found += [f"{'onebit' if run else 'none'}: {fault}" for fault in _not_alike(of_run) + _lost(of_run)]
    return found


def ending(outcome: Outcome, ends: Sequence[int], says: str) -> list[str]:
    """Why a job did not end as it should: no rank ends by a signal that the program did not send."""
    if outcome.broken or outcome.statuses != list(ends):
        return [outcome.broken or f"exit statuses {outcome.statuses}\n{outcome.said}"]
    return [] if re.search(says, outcome.said, re.DOTALL) else [outcome.said]


def part(values: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{kind}/"): value for name, value in values.items() if name.startswith(f"{kind}/")}


def _far(values: dict[str, np.ndarray], limit: float) -> list[str]:
    got, wanted = part(values, "got"), part(values, "wanted")
    if got.keys() != wanted.keys() or not got:
        return [f"the program has {sorted(got)}, and its reference {sorted(wanted)}"]
    found = []
    for name, right in wanted.items():
        if got[name].shape != right.shape:
            found.append(f"{name} has shape {got[name].shape}, and its reference {right.shape}")
        elif right.size:
            scale = max(float(np.abs(right).max()), 1e-2)
            far = float(np.abs(got[name] - right).max()) / scale
            if not far < limit:
                found.append(f"{name} is {far:.1e} from its reference, of {scale:.2g}: {got[name].ravel()[:4]}")
    return found


def _not_alike(of_ranks: list[dict[str, np.ndarray]]) -> list[str]:
    """Names that begin with "own." are each rank's own."""
    first = part(of_ranks[0], "got")
    return [
        f"{name} of rank {rank} is not that of rank 0"
        for rank, values in enumerate(of_ranks)
        for name, value in part(values, "got").items()
        if not name.startswith("own.") and not np.array_equal(value, first[name], equal_nan=True)
    ]


def _lost(of_ranks: list[dict[str, np.ndarray]]) -> list[str]:
    """What was applied and what is pending are what was given."""
    found = []
    kept = [part(values, "pending") for values in of_ranks]
    for name, applied in part(of_ranks[0], "applied").items():
        given = np.mean([part(values, "given")[name] for values in of_ranks], axis=0)
        pending = np.mean([of_rank.get(name, np.zeros_like(given)) for of_rank in kept], axis=0)
        scale = max(float(np.abs(given).max(initial=0)), 1e-2)
        lost = float(np.abs(applied + pending.reshape(applied.shape) - given).max(initial=0)) / scale
        if not lost < 1e-3:
            found.append(f"{name}: {lost:.1e} of what was given is lost")
    return found


def refusal(outcome: Outcome, error: str, says: str, batches: int, ranks: int) -> list[str]:
    """Why a cell is not refused as it should be."""
    if outcome.broken:
        return [outcome.broken]
    found = []
    for end in outcome.ends:
        if not re.fullmatch(error, end.get("error", "")) or not re.search(says, end["says"]):
            found.append(f"rank {end['rank']} ended with {end.get('trace', 'no error')}")
        elif end["batches"] > batches:
            found.append(f"rank {end['rank']} took {end['batches']} batches before it was told")
    return found if found or len(outcome.ends) == ranks else ["some ranks have said nothing"]

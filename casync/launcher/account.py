"""The record of what is known of each rank, and the words in which the job's end is told. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Rank", "Verdict", "describe", "group", "how", "ranks_text", "shell_status", "who"]


@dataclass
class Rank:
    """The facts known of one rank. `status` is as subprocess gives it; `lost` when its wrapper left without a report.

    `stopped` is the signal that holds it now, since `stopped_at`; `left_at` is when it began to leave MPI, or ended.
    `failing` is its own word that it leaves by its own fault, `gave_up` that it leaves by another's; `accused` when a
    peer said that this rank does not answer, and why it thinks so; `fault` what casyncrun itself found. `orphaned` when
    the wrapper ended the command because mpirun's daemon on that host had died; `killed` when casyncrun decided its
    end. `gpu` is the UUID of the one that its tensors are on.
    """

    host: str = "?"
    pid: int = 0
    present: bool = False
    initialized: bool = False
    stopped: int = 0
    stopped_at: float = 0.0
    left_in_order: bool = False
    left_at: float | None = None
    failing: str | None = None
    gave_up: str | None = None
    accused: str | None = None
    fault: str | None = None
    status: int | None = None
    lost: bool = False
    orphaned: bool = False
    killed: bool = False
    gpu: str | None = None

    @property
    def ended(self) -> bool:
        """Whether this rank's command is known to have ended."""
        return self.status is not None or self.lost


@dataclass(frozen=True)
class Verdict:
    """How the job ended: casyncrun's exit status and the text that explains it (empty when all is well)."""

    status: int
    text: str


def how(status: int) -> str:
    """`exited with status 3` or `was killed by SIGKILL`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def shell_status(status: int) -> int:
    """Return what a shell makes of a status that subprocess gives."""
    return status if status >= 0 else 128 - status


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0, 2`."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def who(rank: int, entry: Rank) -> str:
    """`rank 2 on host h1`."""
    return f"rank {rank} on host {entry.host}"


def describe(rank: int, entry: Rank, starter: str) -> str:
    """Say what became of a rank, or what state it is in, and why if that is known."""
    if entry.fault is not None:
        text = entry.fault
    elif entry.stopped:
        text = f"is stopped by {signal.Signals(entry.stopped).name}"
    elif entry.lost:
        text = "was lost: its connection to casyncrun closed without an exit report"
    elif entry.orphaned:
        text = f"was ended because {starter}'s daemon on that host died"
    elif entry.status is not None:
        text = how(entry.status)
    else:
        text = "does not answer" if entry.accused else "is failing"
    why = entry.failing or entry.accused or entry.gave_up
    return f"{who(rank, entry)} {text}" + (f" ({why})" if why else "")


def group(entries: Mapping[int, Rank], starter: str) -> str:
    """How several ranks ended, those alike together: `ranks 0, 3 exited with status 1, rank 1 lost`."""
    groups: dict[str, list[int]] = {}
    for rank, entry in entries.items():
        if entry.killed:
            key = "ended by casyncrun"
        elif entry.orphaned:
            key = f"ended because {starter}'s daemon died"
        elif entry.status is not None:
            key = how(entry.status).removeprefix("was ")
        else:
            key = "lost" if entry.lost else "without a report"
        groups.setdefault(key, []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} {key}" for key, ranks in groups.items())

"""The answers that the ledger may give, and the durations that it goes by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Action", "EndMpirun", "Kill", "Policy", "Release", "Say", "Signal", "Start"]


@dataclass(frozen=True)
class Policy:
    """Durations in seconds; `hold` keeps a failed rank's wrapper alive, for an mpirun that would kill the others.

    `starter` is what the texts call the program that starts the ranks: mpirun or srun.
    """

    start_timeout: float = 60.0
    grace: float = 15.0
    init_grace: float = 5.0
    interrupt_grace: float = 5.0
    end_grace: float = 3.0
    hold: bool = False
    starter: str = "mpirun"


@dataclass(frozen=True)
class Start:
    """Every rank is there: send each its place."""


@dataclass(frozen=True)
class Release:
    """Close the connection to a rank whose exit is in the ledger; its wrapper then ends."""

    rank: int


@dataclass(frozen=True)
class Signal:
    """Pass a signal to the commands of all ranks."""

    number: int


@dataclass(frozen=True)
class Kill:
    """End a rank's command and everything it started."""

    rank: int
    why: str


@dataclass(frozen=True)
class EndMpirun:
    """Signal mpirun itself."""

    number: int


@dataclass(frozen=True)
class Say:
    """A line for the user; `loud` ones are shown without --verbose."""

    text: str
    loud: bool = True


Action = Start | Release | Signal | Kill | EndMpirun | Say

"""Child processes of a rank, which find the rank's place in their environment. Pure but for a look at /proc.

A worker of a DataLoader that is spawned, or a program that a rank starts, has all of the launcher's variables. If it
called `init()` as the rank that it is not, MPI would mix up the two and crash the rank. So `init()` leaves a mark in
the environment: which process has taken which place. A launcher inside a rank gives its ranks other places.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

__all__ = ["MARK", "erase", "mark", "who_has"]

MARK = "CASYNC_RANK_PROCESS"


def mark(environ: MutableMapping[str, str], places: Iterable[str]) -> None:
    """This process has taken `places`, words of which no other process of the job has any."""
    process = os.getpid()
    environ[MARK] = " ".join([str(process), _began(process), *places])


def erase(environ: MutableMapping[str, str]) -> None:
    """This process has left its place. A mark of another one stays."""
    if environ.get(MARK, "").startswith(f"{os.getpid()} "):
        del environ[MARK]


def who_has(environ: Mapping[str, str], place: str) -> int | None:
    """The number of another process that has taken `place` and is alive; None: there is none."""
    number, began, *places = environ.get(MARK, "").split() or ["", ""]
    if place not in places or not number.isdigit() or int(number) == os.getpid() or _began(int(number)) != began:
        return None
    return int(number)


def _began(process: int) -> str:
    """Return when it was started, which tells it from a later one of that number. Empty: it is gone, or not visible."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name before may hold anything
    return "" if fields[0] in "ZX" else fields[19]

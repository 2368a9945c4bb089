"""What a process holds of that which could leak from one session to the next."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from casync.rendezvous import choose
from casync.session import Session

_LISTEN = "0A"


def _listening_ports() -> int:
    """Sockets of this process on which somebody could connect."""
    mine = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            mine.add(os.readlink(fd))
        except FileNotFoundError:  # the one that lists the folder
            continue
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()
    ]
    return sum(line[3] == _LISTEN and f"socket:[{line[9]}]" in mine for line in lines)


def _next_communicator() -> int:
    """MPI's number for a communicator that is made now: the lowest one that is free."""
    from mpi4py import MPI

    one = MPI.COMM_SELF.Dup()
    number = one.py2f()
    one.Free()
    return number


def _is_by_mpi() -> bool:
    return choose(os.environ, os.environ.get("CASYNC_TRANSPORT", "auto")).kind == "mpi"


def held() -> dict[str, int]:
    """By name, how many there are."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "listening ports": _listening_ports(),
        "segments of shared memory": maps.count("/dev/shm/"),
        "communicators": _next_communicator() if _is_by_mpi() else 0,
        "sessions": sum(type(item) is Session for item in gc.get_objects()),
    }


def held_at_last(expected: dict[str, int], within_s: float = 10) -> dict[str, int]:
    """`held()`, as soon as it is `expected`, or what it still is after `within_s`: what nobody waits for, such as a
    thread of rank 0 that has answered a question, ends a moment after the session."""
    until = time.monotonic() + within_s
    while (now := held()) != expected and time.monotonic() < until:
        time.sleep(0.01)
    return now

"""What a process holds of that which could leak from one session to the next."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from casync.collectives.objects import broadcast_object
from casync.rendezvous.choose import choose
from casync.rendezvous.stores import FileStore
from casync.session.session import Session

_LISTEN = "0A"
_REST_SECONDS = 10
_MEETING_SECONDS = 60


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


class Meeting:
    """Where ranks meet that have no session open: in a folder that rank 0 chooses while one is."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._store = FileStore(broadcast_object(str(folder / "meeting")))
        self._rank, self._size = rank, size

    def held(self, moment: str) -> dict[str, int]:
        """`held()` of this rank between two sessions, once nothing is about to end. All ranks count at one time: each
        question of a rank that went on to the next session would be a thread and a socket of rank 0's store.
        """
        self._meet(f"{moment} begins")
        last, before = held(), None
        until = time.monotonic() + _REST_SECONDS
        while last != before and time.monotonic() < until:
            time.sleep(0.1)  # an answer's thread ends a moment after the answer
            last, before = held(), last
        self._meet(f"{moment} is over")
        return last

    def _meet(self, moment: str) -> None:
        self._store.put(f"{moment}: {self._rank}", b"")
        there = self._store.wait([f"{moment}: {rank}" for rank in range(self._size)], _MEETING_SECONDS)
        assert len(there) == self._size, f"{moment}: only {sorted(there)} came"

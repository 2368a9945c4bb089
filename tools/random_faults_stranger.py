"""Talks nonsense to every port that a job listens at: run as `random_faults_stranger.py MARK RATE SECONDS`.

The job's processes are those of this machine that have MARK in their environment; mpirun's own are left alone. It makes
RATE connections a second, to 127.0.0.1 or ::1, and ends after SECONDS, or with the job once it has seen it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LISTENS = "0A"
_LOOK_SECONDS = 0.5
_KEPT = 64  # connections that are held on to
_OF_MPI = (b"mpirun", b"prte", b"orted")
_SAYS = (
    b"",
    b"H\x00\x00\x00\x02{}",
    b"H\xff\xff\xff\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    b"CaSync02" + b"x" * 42,
    b"CaSync02" + b"x" * 4000,
    bytes.fromhex("00cef7853c0d70696e67"),
    b'{"wait": ["casync//secret"], "timeout_s": 60}\n',
    b"\x00" * 3000,
)


def processes(mark: bytes) -> Iterator[Path]:
    """Those of the job, but for this one and what belongs to MPI."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes():
                program = (entry / "cmdline").read_bytes().split(b"\0")[0]
                if not any(name in program for name in _OF_MPI):
                    yield entry


def ports(process: Path) -> Iterator[tuple[str, int]]:
    """Where it listens."""
    mine = set()
    for descriptor in (process / "fd").glob("*"):
        with contextlib.suppress(OSError):
            mine.add(os.readlink(descriptor))
    for table, address in (("tcp", "127.0.0.1"), ("tcp6", "::1")):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            local, state, inode = (line.split()[field] for field in (1, 3, 9))
            if state == _LISTENS and f"socket:[{inode}]" in mine:
                yield address, int(local.rpartition(":")[2], 16)


def main() -> None:
    mark, rate, seconds = sys.argv[1].encode(), float(sys.argv[2]), float(sys.argv[3])
    until = time.monotonic() + seconds
    held: list[socket.socket] = []
    places: list[tuple[str, int]] = []
    looked, seen, made = 0.0, False, 0
    while time.monotonic() < until:
        if time.monotonic() >= looked + _LOOK_SECONDS:
            looked = time.monotonic()
            found = list(processes(mark))
            if seen and not found:
                break
            seen = seen or bool(found)
            places = []
            for each in found:
                with contextlib.suppress(OSError):
                    places += ports(each)
        if places:
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(random.choice(places), timeout=0.2))
                made += 1
                held[-1].settimeout(0.5)
                held[-1].sendall(random.choice(_SAYS))
        while len(held) > _KEPT:
            held.pop(random.randrange(len(held))).close()
        time.sleep(1 / rate)
    print(f"made {made} connections")


if __name__ == "__main__":
    main()

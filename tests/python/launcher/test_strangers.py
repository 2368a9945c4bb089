"""What somebody who is no rank can do to casyncrun at the port where it waits for its ranks: nothing."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from casync.launcher.greeting import hello_of
from casync.launcher.rank.wire import Unpacker, hello_proof, pack

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

# Starts the ranks as starter.py does, with `before(address)` called first and `meanwhile(address)` beside them.
STARTER = """
    import os, socket, subprocess, sys, threading, time
    from casync.launcher.rank.wire import LAUNCHER, TOKEN, pack
    words, _, port = os.environ[LAUNCHER].rpartition(":")
    address = words.split(",")[0], int(port)
    {body}
    stranger = threading.Thread(target=meanwhile, args=(address,), daemon=True)
    before(address)
    stranger.start()
    status = subprocess.call([sys.executable, "-I", "-S", *sys.argv[1:]])
    sys.exit(status)
"""
# A job without MPI, whose ranks that starter starts.
JOB = """
    import dataclasses, os, sys
    from casync.launcher.job import Job
    from casync.launcher.mpirun import compose, gather_facts
    from casync.launcher.options import parse
    facts = dataclasses.replace(gather_facts(os.environ), mpi=None)
    options = parse(sys.argv[2:])
    launch = compose(options, facts, os.environ)
    launch = dataclasses.replace(launch, argv=(sys.executable, sys.argv[1], *launch.argv[3:]))
    sys.exit(Job(options, launch, os.environ).run())
"""
NOTHING = """
    def before(address): pass
    def meanwhile(address): pass
"""
SAY = """
    def before(address):
        for said in {said}:
            with socket.create_connection(address) as connection:
                connection.sendall(said)
                connection.settimeout(5)
                try:
                    while connection.recv(100):
                        pass
                except ConnectionResetError:
                    pass
    def meanwhile(address): pass
"""
HOLD = """
    held = []
    def before(address):
        for _ in range(50):
            held.append(socket.create_connection(address))
            held[-1].sendall(b"H")
    def meanwhile(address): pass
"""
# As many as there can be, but for a millisecond between two.
FLOOD = """
    def before(address): pass
    def meanwhile(address):
        while True:
            try:
                with socket.create_connection(address, timeout=5) as connection:
                    connection.sendall(b"GET / HTTP/1.1\\r\\n")
            except OSError:
                pass
            time.sleep(0.001)
"""


def job(casyncrun: Runner, body: str, ranks: int = 3) -> tuple[int, list[str], str]:
    starter, program = casyncrun.folder / "starter.py", casyncrun.folder / "job.py"
    starter.write_text(textwrap.dedent(STARTER).replace("{body}", textwrap.dedent(body)))
    program.write_text(textwrap.dedent(JOB))
    command = [sys.executable, str(program), str(starter), "-np", str(ranks), "sh", "-c", "echo $CASYNC_RANK"]
    process = casyncrun.start_command([*command, casyncrun.marker])
    out, errors = process.communicate(timeout=90)
    return process.returncode, sorted(out.splitlines()), errors


def all_ranks(ranks: int) -> list[str]:
    return [f"[{rank}]<stdout>: {rank}" for rank in range(ranks)]


def test_nonsense_ends_no_job(casyncrun: Runner) -> None:
    frames = [
        pack("H", b"{}"),
        pack("H", b"not json"),
        pack("H", b"[1]"),
        pack("H", {"rank": 0, "token": "é"}),
        pack("H", {"rank": 0, "token": "x" * 64}),
        pack("H", b"[" * 4000),
        pack("H", hello_proof("another token") + b"{}"),
        pack("X", {"status": 0, "orphaned": False}),
        pack("G", b""),
        b"GET / HTTP/1.1\r\n\r\n",
        b"H\xff\xff\xff\xff" + b"x" * 10_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
    status, lines, errors = job(casyncrun, SAY.replace("{said}", repr(frames)))
    assert (status, lines) == (0, all_ranks(3)), errors


@pytest.mark.parametrize("body", [HOLD, FLOOD], ids=["hold", "flood"])
def test_many_connections_keep_no_rank_out(casyncrun: Runner, body: str) -> None:
    status, lines, errors = job(casyncrun, body)
    assert (status, lines) == (0, all_ranks(3)), errors


HELLO = {"rank": 1, "hostname": "h" * 255, "pid": 7, "local_rank": None, "port": 5000, "size": 2}


def test_a_rank_proves_that_it_is_one_of_the_job_and_says_where_it_is() -> None:
    frame = pack("H", hello_proof("token") + json.dumps(HELLO).encode())
    ((kind, body),) = Unpacker(4096).feed(frame)
    hello = hello_of(kind, body, "token", 2)
    assert (hello.rank, hello.hostname, hello.local_rank, hello.port) == (1, "h" * 255, None, 5000)
    assert b"token" not in body


WRONG: list[dict[str, object]] = [{"rank": 2}, {"rank": -1}, {"rank": "one"}, {"port": None}]


@pytest.mark.parametrize(
    "said", [b"{}", b"[1]", b"3", b"null", b"{", *(json.dumps({**HELLO, **each}).encode() for each in WRONG)]
)
def test_a_greeting_that_makes_no_sense_is_refused(said: bytes) -> None:
    with pytest.raises(ValueError):
        hello_of("H", hello_proof("token") + said, "token", 2)


def test_a_frame_may_not_be_longer_than_was_said() -> None:
    assert list(Unpacker(4).feed(pack("H", b"four"))) == [("H", b"four")]
    with pytest.raises(ValueError, match="a frame of 5 bytes"):
        list(Unpacker(4).feed(pack("H", b"fives")))

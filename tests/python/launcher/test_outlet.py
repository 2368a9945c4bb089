"""Nobody has to read a job's output at once: a pager, a stopped terminal, a slow log."""

from __future__ import annotations

import shlex
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from casync.launcher.rank.wire import is_silent, keep_alive

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner

LINES = 30_000
# More than a pipe, two sockets and casyncrun's own memory hold.
TALK = f"""
    for line in range({LINES}):
        print("x" * 1000, line)
"""


@pytest.mark.timeout(120)
def test_a_reader_that_pauses_gets_all_of_it(casyncrun: Runner) -> None:
    process = casyncrun.start(TALK, "-np", "1")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(4)
    assert process.poll() is None and len(casyncrun.left()) > 1
    out = process.stdout.read()  # communicate() would pass over what readline() has read ahead
    assert process.wait(timeout=90) == 0
    assert [int(line.split()[-1]) for line in out.splitlines()] == list(range(1, LINES))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_nobody_reads_can_be_ended(casyncrun: Runner, number: signal.Signals) -> None:
    process = casyncrun.start(TALK + "\n    import time; time.sleep(300)", "-np", "2")
    time.sleep(5)
    process.send_signal(number)
    process.wait(timeout=40)
    assert process.returncode == 128 + number


@pytest.mark.timeout(120)
def test_one_that_leaves_ends_the_job(casyncrun: Runner) -> None:
    process = casyncrun.start(TALK, "-np", "1")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(3)
    process.stdout.close()
    process.wait(timeout=40)
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("redirection", "said"), [(">/dev/full", "No space left on device"), (">&-", "Bad file")])
def test_output_that_cannot_be_written_is_said(casyncrun: Runner, redirection: str, said: str) -> None:
    command = casyncrun.command("print('hello', flush=True)\nimport time; time.sleep(30)", "-np", "1")
    process = casyncrun.start_command(["sh", "-c", f"{shlex.join(command)} {redirection}"])
    assert f"casyncrun: stdout cannot be written: {said}" in process.communicate(timeout=40)[1]
    assert process.returncode == 128 + signal.SIGPIPE


def test_too_few_open_files_are_said_in_one_line(casyncrun: Runner) -> None:
    command = casyncrun.command("pass", "-np", "1")
    process = casyncrun.start_command(["sh", "-c", f"ulimit -n 8; {shlex.join(command)}"])
    said = process.communicate(timeout=40)[1]
    line = (
        "casyncrun: Too many open files: casyncrun may have 8 at once, and needs more. Raise the limit: ulimit -n 65536"
    )
    assert line in said.splitlines(), said
    assert process.returncode == 1


def test_a_peer_that_does_not_read_is_not_taken_for_one_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
            for end in (one, other):
                keep_alive(end)
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    one.send(b"x" * 65536)
            time.sleep(0.5)
            assert not is_silent(one) and not is_silent(other)

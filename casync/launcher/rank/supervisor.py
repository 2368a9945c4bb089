"""The program that mpirun, or another, starts on each rank. It exports the environment, runs the command, and reports
how that ended.

mpirun's own exit status is 0 when the survivors of a failure leave with 0, and its output loses the line structure, so
each rank keeps a TCP connection to casyncrun and sends over it what the command writes and how it exits. The same
connection is the leash: when it breaks, casyncrun is gone and the command is killed with everything it started.

Without `CASYNC_LAUNCHER` in the environment (a line that `casyncrun --dry-run` printed) it exports the names and
becomes the command.
"""

from __future__ import annotations

import functools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from casync.launcher.rank.guard import before_exec, die_with_parent, no_core_dump, remove_session, start_guard
from casync.launcher.rank.join import join
from casync.launcher.rank.place import free_port, mpi_place, rank_names
from casync.launcher.rank.wire import (
    JOB_SECRET,
    LAUNCHER,
    REPORT_FD,
    RESULT_FD,
    TOKEN,
    Unpacker,
    hello_proof,
    is_silent,
    job_secret,
    pack,
)

__all__ = ["Supervisor", "main"]

_CHUNK = 65536
_DRAIN_SECONDS = 0.5  # how long output is awaited from what the command left behind
_PARENT_SECONDS = 2.0  # how long mpirun or prted may take to die, before its session folder is left to it
_CHECK_SECONDS = 5.0
_UNREAD = 1 << 20  # bytes for casyncrun; with more, nothing is read from the command, whose prints then wait
_UNREACHABLE = 97


class Supervisor:
    """One rank: the command, its pipes, and the connection to casyncrun. Single-threaded, sleeps in select."""

    def __init__(self, connection: socket.socket, frames: Unpacker, first_of_host: bool) -> None:
        self._connection = connection
        self._first_of_host = first_of_host
        self._parent = os.getppid()
        self._frames = frames
        self._selector = selectors.DefaultSelector()
        self._child: subprocess.Popen[bytes] | None = None
        self._group = 0
        self._status: int | None = None
        self._leash_broken = False
        self._orphaned = False
        self._input: int | None = None
        self._out = bytearray()

    def send(self, kind: str, payload: bytes | Mapping[str, Any] = b"") -> None:
        """Send one frame, as soon as casyncrun reads; a broken connection ends the rank, it does not raise."""
        if not self._leash_broken:
            self._out += pack(kind, payload)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._connection.send(self._out[:_CHUNK])]
        except BlockingIOError:
            if is_silent(self._connection):
                self._cut()
        except OSError:
            self._cut()

    def _wait_for_casyncrun(self, most: int) -> bytes | None:
        """Wait until at most `most` bytes are left to send. Return what casyncrun says meanwhile; empty: it is gone."""
        while not self._leash_broken and len(self._out) > most:
            readable, writable, _ = select.select([self._connection], [self._connection], [], _CHECK_SECONDS)
            self._flush()
            if readable:
                return self._heard()
        return None

    def _heard(self) -> bytes:
        try:
            return self._connection.recv(_CHUNK)
        except OSError:
            return b""

    def wait_for_go(self) -> dict[str, Any]:
        """Block until casyncrun has heard from every rank."""
        while True:
            data = self._connection.recv(_CHUNK)
            if not data:
                raise SystemExit(1)
            for kind, body in self._frames.feed(data):
                if kind == "F":
                    if self._input is None:
                        self._input = os.memfd_create("casync.run")
                    _write_all(self._input, body)
                if kind == "G":
                    return dict(json.loads(body))
                if kind == "K":
                    raise SystemExit(1)

    def run(self, command: Sequence[str], go: Mapping[str, Any]) -> int:
        """Run the command to its end; returns its status as subprocess gives it (negative: a signal)."""
        self._connection.setblocking(False)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        report_read, report_write = os.pipe()
        self._group = start_guard()
        environ = {k: v for k, v in os.environ.items() if k not in (LAUNCHER, TOKEN)}
        environ.update(rank_names(go["place"], environ))
        environ.update(go.get("environ", {}))
        if not any(environ.get(name) for name in JOB_SECRET):  # the user's own is for more than this job
            environ[JOB_SECRET[0]] = job_secret(os.environ.get(TOKEN, ""))
        environ[REPORT_FD] = str(report_write)
        passed = [report_write]
        stdin = subprocess.DEVNULL  # mpirun 5.0.11 never passes on the end of its stdin: a reader would hang
        if self._input is not None:
            os.lseek(self._input, 0, os.SEEK_SET)
            stdin = self._input
            passed.append(os.memfd_create("casync.run result"))
            environ[RESULT_FD] = str(passed[-1])
        try:
            self._child = subprocess.Popen(
                list(command),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                pass_fds=passed,
                preexec_fn=functools.partial(before_exec, self._group, os.getpid()),
            )
        except OSError as error:
            self.send("E", f"casyncrun: cannot start {command[0]}: {error.strerror}\n".encode())
            self._kill_group()
            return 127 if isinstance(error, FileNotFoundError) else 126
        os.close(report_write)
        assert self._child.stdout is not None and self._child.stderr is not None
        pipes = {self._child.stdout.fileno(): "O", self._child.stderr.fileno(): "E", report_read: "R"}
        for descriptor in pipes:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(wake_read, selectors.EVENT_READ)
        self._obey(b"")  # what came right behind the word to go
        self._loop(pipes, wake_read)
        for result in passed[1:]:
            self._send_result(result)
        assert self._status is not None
        return self._status

    def _send_result(self, result: int) -> None:
        os.lseek(result, 0, os.SEEK_SET)
        while (data := os.read(result, _CHUNK)) and not self._leash_broken:
            self.send("V", data)
            while (said := self._wait_for_casyncrun(_UNREAD)) is not None:
                self._obey(said) if said else self._cut()

    def _loop(self, pipes: dict[int, str], wake_read: int) -> None:
        deadline: float | None = None
        while self._status is None or pipes:
            is_unread = self._watch(pipes)
            if self._status is not None:
                # The command is gone: end what it left behind in its process group, then wait briefly for the
                # pipes, which a process outside the group may still hold open.
                if deadline is None or is_unread:
                    self._kill_group()
                    deadline = time.monotonic() + _DRAIN_SECONDS
                if time.monotonic() > deadline:
                    break
            for key, events in self._selector.select(self._patience(deadline)):
                if key.fd in pipes:
                    data = os.read(key.fd, _CHUNK)
                    if data:
                        self.send(pipes[key.fd], data)
                    else:
                        self._selector.unregister(key.fd)
                        del pipes[key.fd]
                elif key.fd == wake_read:
                    self._signals(os.read(wake_read, 512))
                elif events & selectors.EVENT_READ:
                    self._orders()
            if self._out:
                self._flush()

    def _patience(self, deadline: float | None) -> float | None:
        if deadline is not None:
            return 0.05
        return _CHECK_SECONDS if self._out else None

    def _watch(self, pipes: Mapping[int, str]) -> bool:
        """Select what there is to wait for; whether the command's output waits, because casyncrun does not read."""
        is_unread = len(self._out) > _UNREAD
        watched = self._selector.get_map()
        if self._connection in watched:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            if self._selector.get_key(self._connection).events != events:
                self._selector.modify(self._connection, events)
        for pipe, kind in pipes.items():
            if kind in "OE" and is_unread and pipe in watched:
                self._selector.unregister(pipe)
            elif pipe not in watched and not is_unread:
                self._selector.register(pipe, selectors.EVENT_READ)
        return is_unread

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                self._reap()
            elif os.getppid() != self._parent:
                self._orphaned = True  # prted or mpirun died (PDEATHSIG): nobody is left to ask twice
                self._kill_group()
            else:
                self._signal_group(number)

    def _reap(self) -> None:
        assert self._child is not None
        while self._status is None:
            pid, status = os.waitpid(self._child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self.send("T", {"stopped": os.WSTOPSIG(status)})
            elif os.WIFCONTINUED(status):
                self.send("T", {"stopped": 0})
            else:
                self._status = self._child.returncode = os.waitstatus_to_exitcode(status)

    def _orders(self) -> None:
        if data := self._heard():
            self._obey(data)
        else:
            self._cut()

    def _obey(self, data: bytes) -> None:
        for kind, body in self._frames.feed(data):
            order = json.loads(body) if body else {}
            if kind == "S":
                self._signal_group(int(order["signal"]))
            elif kind == "K":
                self.send("E", f"casyncrun: ending this rank: {order['why']}\n".encode())
                self._kill_group()

    def _cut(self) -> None:
        """casyncrun cannot be heard any more: end the command."""
        if not self._leash_broken:
            self._leash_broken = True
            self._out.clear()
            if self._selector.get_map() and self._connection in self._selector.get_map():
                self._selector.unregister(self._connection)
            self._kill_group()

    def _signal_group(self, number: int) -> None:
        if self._group:
            try:
                os.killpg(self._group, number)
            except ProcessLookupError:
                pass

    def _kill_group(self) -> None:
        self._signal_group(signal.SIGKILL)

    def leave(self, status: int, fault_tolerant: bool) -> int:
        """Report the exit, wait until casyncrun lets go, and end the way MPI should see it."""
        self.send("X", {"status": status, "orphaned": self._orphaned})
        while not self._leash_broken:
            data = self._wait_for_casyncrun(0)
            if data is None:
                self._connection.setblocking(True)
                data = self._heard()
            elif not data:
                self._cut()  # with words for it left
            if not data or any(kind == "K" for kind, _ in self._frames.feed(data)):
                break
        self._connection.close()
        if self._leash_broken and os.getppid() == self._parent:
            # casyncrun died without a word. A remote prted outlives mpirun, so ask the one that started us to end. One
            # rank of a host asks: at a second SIGTERM within 5 s mpirun exits at once and leaves its session folder.
            if not self._first_of_host:
                self._wait_for_parent()
            if os.getppid() == self._parent:
                try:
                    os.kill(self._parent, signal.SIGTERM)
                except PermissionError:
                    return 1  # Slurm's own daemon, which ends its step by itself
                self._wait_for_parent()
        if os.getppid() != self._parent:
            remove_session(self._parent)
        if status == 0:
            return 0
        # Open MPI's fault tolerance learns of a death by signal only: after a plain exit(3) the peers of a rank
        # wait in their barrier for ever (seen with 5.0.11). The true status is already in the ledger.
        number = -status if status < 0 else signal.SIGKILL if fault_tolerant else 0
        if number:
            no_core_dump()
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return status if status > 0 else 1

    def _wait_for_parent(self) -> None:
        """A dying process stays its children's parent until its memory is gone, which takes a while under load."""
        deadline = time.monotonic() + _PARENT_SECONDS
        while os.getppid() == self._parent and time.monotonic() < deadline:
            time.sleep(0.01)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _alone(command: Sequence[str], place: dict[str, Any]) -> int:
    if place["local_size"]:
        # mpirun fills hosts in order, so with equal hosts the host's index follows from the rank.
        place["cross_rank"] = place["rank"] // place["local_size"]
        place["cross_size"] = -(-place["size"] // place["local_size"])
    os.environ.update(rank_names(place, os.environ))
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"casyncrun: cannot start {command[0]}: {error.strerror}\n")
        return 127


def main(argv: Sequence[str]) -> int:
    """`casync/launcher/rank/__main__.py -- COMMAND ...`"""
    command = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not command:
        sys.stderr.write("usage: casync/launcher/rank/__main__.py -- COMMAND ...\n")
        return 2
    try:
        place = mpi_place(os.environ, socket.gethostname())
    except LookupError as error:
        sys.stderr.write(f"casync.launcher.rank: {error.args[0]}\n")
        return 1
    where = os.environ.get(LAUNCHER)
    if where is None:
        return _alone(command, place)
    # mpirun or prted dying is a SIGTERM here, not a SIGKILL: the handler still has to kill the command's group.
    die_with_parent(signal.SIGTERM)
    hello = {**place, "pid": os.getpid(), "port": free_port()}
    greeting = hello_proof(os.environ.get(TOKEN, "")) + json.dumps(hello).encode()
    try:
        connection, frames = join(where, pack("H", greeting))
    except OSError as error:
        sys.stderr.write(f"casyncrun: rank {place['rank']} on host {place['hostname']} {error}\n")
        return _UNREACHABLE
    rank = Supervisor(connection, frames, not place["local_rank"])
    go = rank.wait_for_go()
    return rank.leave(rank.run(command, go), bool(go.get("fault_tolerant")))

"""Runs one job: starts mpirun or srun, listens to the ranks, prints their output, carries out what the ledger decides.

One thread that sleeps in select. Nobody outlives it: mpirun dies with this process, each rank's command with its
connection to this process.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from casync.launcher import actions, hosts, ledger, signals
from casync.launcher.greeting import Hello, hello_of
from casync.launcher.mpirun import Launch, listen_addresses
from casync.launcher.options import Options
from casync.launcher.outlet import Outlet
from casync.launcher.output import LinePrinter
from casync.launcher.rank.guard import remove_session
from casync.launcher.rank.wire import LAUNCHER, TOKEN, Unpacker, is_silent, keep_alive, pack
from casync.launcher.rank_files import RankFiles
from casync.rendezvous.interfaces import is_loopback, listen_at, loopback
from casync.rendezvous.strangers import SAY_BYTES, Strangers

__all__ = ["Job"]

_CHUNK = 65536
_PIECE = 1 << 20
_CHECK_SECONDS = 5.0


class _Connection:
    """The launcher's side of one connection; without a `hello` it has proved nothing."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.frames = Unpacker(SAY_BYTES)
        self.report = b""
        self.hello: Hello | None = None

    @property
    def rank(self) -> int | None:
        return None if self.hello is None else self.hello.rank

    def welcome(self, hello: Hello) -> None:
        self.hello = hello
        self.frames.longest = Unpacker().longest


class Job:
    """One job. `stdin` is what each rank's command reads, `results` what `casync.launcher.task` wrote, by rank.

    A job with `stdin` collects results; without, the commands read nothing. `write(stream, data)` takes all output in
    place of this process's stdout and stderr. `progress(done, what)` gets what a rank says of its progress, and
    `observed(what)` what one says of its program. When that returns true, or after `limit` seconds, the job ends as by
    SIGTERM.
    """

    def __init__(
        self,
        options: Options,
        launch: Launch,
        environ: Mapping[str, str],
        stdin: bytes | None = None,
        write: Callable[[str, bytes], None] | None = None,
        progress: Callable[[float, str], None] | None = None,
        observed: Callable[[Mapping[str, Any]], bool] | None = None,
        limit: float = math.inf,
    ) -> None:
        self.results: dict[int, bytearray] = {}
        self._options = options
        self._launch = launch
        self._environ = environ
        self._stdin = stdin
        self._progress = progress
        self._observed = observed
        self._files: RankFiles | None = None
        self._token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, _Connection] = {}
        self._strangers: Strangers[_Connection] = Strangers(options.num_proc)
        self._outlet = Outlet()
        self._printer = LinePrinter(write or self._outlet.write, _now if options.timestamps else None)
        self._paused: list[_Connection] = []
        """Ranks that nothing is read from, because nobody reads their output."""
        self._mpirun: subprocess.Popen[bytes] | None = None
        began = time.monotonic()
        self._limit = began + limit
        self.ledger = ledger.Ledger(
            options.num_proc,
            actions.Policy(
                options.start_timeout, options.grace, hold=not launch.fault_tolerant, starter=launch.starter
            ),
            began,
        )
        self._everyone = range(options.num_proc)
        self._checked_at = began
        self._wake: int | None = None
        self._is_ending = False

    def run(self) -> int:
        """Run to the end; returns casyncrun's exit status."""
        launch = self._launch
        self._printer.note("\n".join([launch.note, *self._options.remarks]))
        if self._options.output_folder is not None:
            try:
                self._files = RankFiles(self._options.output_folder, self._options.num_proc)
            except OSError as error:
                self._printer.note(
                    f"--output-filename {self._options.output_folder}: {error.filename}: {error.strerror}"
                )
                self._outlet.drain(lambda: True)
                return 1
        if self._options.verbose:
            self._printer.note(launch.shell())
        (listener,) = listen_at("" if launch.remote else loopback(), backlog=self._options.num_proc + 1024)
        listener.setblocking(False)
        port = listener.getsockname()[1]
        addresses = listen_addresses(self._options.networks, launch.remote)
        environ = {k: v for k, v in self._environ.items() if not _of_another_job(k)}
        environ |= {**launch.environ, LAUNCHER: f"{','.join(addresses)}:{port}", TOKEN: self._token}
        self._wake, restore = signals.catch()
        try:
            self._mpirun = subprocess.Popen(
                launch.argv,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                preexec_fn=_before_exec,
            )
            assert self._mpirun.stdout is not None and self._mpirun.stderr is not None
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._outlet.wake, selectors.EVENT_READ, self._of_outlet)
            for pipe, stream in ((self._mpirun.stdout, "stdout"), (self._mpirun.stderr, "stderr")):
                self._selector.register(pipe, selectors.EVENT_READ, (self._of_mpirun, stream))
            ended = os.pidfd_open(self._mpirun.pid)
            self._selector.register(ended, selectors.EVENT_READ, self._reap)
            if self._wake is not None:
                self._selector.register(self._wake, selectors.EVENT_READ, self._caught)
            return self._loop()
        finally:
            restore()
            self._clean_up(listener)
            self._outlet.close()

    def _loop(self) -> int:
        book = self.ledger
        while not book.done(time.monotonic()):
            due = (
                book.next_deadline(),
                self._strangers.next_deadline(),
                self._limit,
                self._checked_at + _CHECK_SECONDS,
            )
            deadlines = [at for at in due if at is not None and at < math.inf]
            timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            # New connections last: one that has said who it is by now keeps its place.
            events = sorted(self._selector.select(timeout), key=lambda event: event[0].data == self._accept)
            for key, _ in events:
                if isinstance(key.data, tuple):
                    handler, argument = key.data
                    handler(key.fileobj, argument)
                else:
                    key.data(key.fileobj)
            if time.monotonic() >= self._limit:
                self._limit = math.inf
                self._end()
            for overdue in self._strangers.overdue(time.monotonic()):
                self._forget(overdue)
            self._check_ranks()
            self._do(book.tick(time.monotonic()))
        verdict = book.verdict()
        if verdict.text:
            self._printer.note(verdict.text)
        self._outlet.drain(lambda: self._is_ending or self._is_interrupted())
        return 128 + signal.SIGPIPE if "stdout" in self._outlet.broken else verdict.status

    def _check_ranks(self) -> None:
        """Give up ranks whose hosts are gone, and listen to none while nobody reads their output."""
        now = time.monotonic()
        if now >= self._checked_at + _CHECK_SECONDS:
            self._checked_at = now
            for connection in list(self._ranks.values()):
                if connection.link.fileno() >= 0 and is_silent(connection.link):
                    self._forget(connection)
        if self._outlet.is_full and not self._paused and not self._is_ending:
            self._paused = [one for one in self._ranks.values() if one.link.fileno() >= 0]
            for connection in self._paused:
                self._selector.unregister(connection.link)

    def _listen_again(self) -> None:
        for connection in self._paused:
            if connection.link.fileno() >= 0:
                self._selector.register(connection.link, selectors.EVENT_READ, (self._of_rank, connection))
        self._paused = []

    def _is_interrupted(self) -> bool:
        return self._wake is not None and bool(signals.caught(self._wake))

    def _clean_up(self, listener: socket.socket) -> None:
        listener.close()
        if self._files is not None:
            self._files.close()
        for connection in (*self._ranks.values(), *self._strangers.everyone()):
            connection.link.close()
        if self._mpirun is not None and self._mpirun.returncode is None:
            self._mpirun.kill()
            self._mpirun.wait()
            remove_session(self._mpirun.pid)
        self._selector.close()

    # Events --------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            link, _ = listener.accept()
        except OSError:
            return  # who called has hung up, or there are too many
        keep_alive(link)
        connection = _Connection(link)
        if (dropped := self._strangers.enter(connection, time.monotonic())) is not None:
            self._forget(dropped)
        self._selector.register(link, selectors.EVENT_READ, (self._of_rank, connection))

    def _of_rank(self, link: socket.socket, connection: _Connection) -> None:
        try:
            data = link.recv(_CHUNK)
            frames = list(connection.frames.feed(data))
        except (OSError, ValueError):
            data, frames = b"", []
        for kind, body in frames:
            if connection.rank is not None:
                self._frame(connection, connection.rank, kind, body)
                continue
            try:
                self._greet(connection, hello_of(kind, body, self._token, self._options.num_proc))
            except (OSError, ValueError):  # no rank of this job
                data = b""
                break
        if not data and link.fileno() >= 0:
            self._forget(connection)

    def _greet(self, connection: _Connection, hello: Hello) -> None:
        """Raises `ValueError` for a second process that says it is the same rank."""
        self._strangers.leave(connection)
        if hello.rank in self._ranks:
            connection.link.sendall(pack("K", b"was sent away: casyncrun has that rank already"))
            raise ValueError("a rank that is there already")
        connection.welcome(hello)
        self._ranks[hello.rank] = connection
        self._send(hello.rank, "W", b"")
        self._do(self.ledger.hello(hello.rank, hello.hostname, hello.pid))

    def _frame(self, connection: _Connection, rank: int, kind: str, body: bytes) -> None:
        now = time.monotonic()
        if kind in "OE":
            stream = "stdout" if kind == "O" else "stderr"
            self._printer.feed(rank, stream, body)
            if self._files is not None:
                self._files.feed(rank, stream, body)
        elif kind == "V":
            self.results.setdefault(rank, bytearray()).extend(body)
        elif kind == "R":
            *lines, connection.report = (connection.report + body).split(b"\n")
            for line in lines:
                self._reported(rank, line, now)
        elif kind == "T":
            self._do(self.ledger.stopped(rank, json.loads(body)["stopped"], now))
        elif kind == "X":
            self._printer.finish(rank)
            end = json.loads(body)
            self._do(self.ledger.exited(rank, end["status"], now, orphaned=end["orphaned"]))

    def _reported(self, rank: int, line: bytes, now: float) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if "enters" in said:
            limits = float(said["warning_s"]), float(said["timeout_s"])
            self._do(self.ledger.entered(rank, str(said["enters"]), said["peers"] or self._everyone, *limits, now))
        if "met" in said:
            self._do(self.ledger.met(str(said["met"])))
        if said.get("initialized"):
            self._do(self.ledger.initialized(rank))
        if "progress" in said and self._progress is not None:
            self._progress(float(said["progress"]), str(said["what"]))
        if "observed" in said and self._observed is not None and self._observed(said["observed"]):
            self._end()
        if "gpu" in said:
            self._do(self.ledger.uses_gpu(rank, str(said["gpu"])))
        if said.get("leaving"):
            self._do(self.ledger.leaving(rank, now))
        if "gave_up" in said:
            self._do(self.ledger.gave_up(rank, str(said["gave_up"])))
        if "peer" in said:
            self._do(self.ledger.accused(int(said["peer"]), str(said["why"])))
        if "failing" in said:
            self._do(self.ledger.failing(rank, str(said["failing"]), now))

    def _forget(self, connection: _Connection) -> None:
        self._strangers.leave(connection)
        if connection in self._paused:
            self._paused.remove(connection)
        else:
            self._selector.unregister(connection.link)
        connection.link.close()
        if connection.rank is not None:
            self._printer.finish(connection.rank)
            self._do(self.ledger.lost(connection.rank, time.monotonic()))

    def _of_mpirun(self, pipe: Any, stream: str) -> None:
        data = os.read(pipe.fileno(), _CHUNK)
        if not data:
            self._selector.unregister(pipe)
        elif self._options.verbose or not self.ledger.explained:
            self._printer.raw("stderr" if stream == "stderr" else "stdout", data)

    def _reap(self, pidfd: int) -> None:
        assert self._mpirun is not None
        self._selector.unregister(pidfd)
        os.close(pidfd)
        status = self._mpirun.wait()
        if status < 0:
            remove_session(self._mpirun.pid)
        self._do(self.ledger.mpirun_ended(status, time.monotonic()))

    def _caught(self, wake: int) -> None:
        for number in signals.caught(wake):
            self._end(number)

    def _of_outlet(self, _: int) -> None:
        self._outlet.hear()
        if "stdout" in self._outlet.broken and not self._is_ending:
            # `casyncrun ... | head`: nobody reads any more, which ends a command of one process too.
            self._printer.note(f"stdout cannot be written: {self._outlet.broken['stdout']}; casyncrun ends the job")
            self._end()
        if not self._outlet.is_full:
            self._listen_again()

    # Actions -------------------------------------------------------------------------------------------------------

    def _do(self, orders: Iterable[actions.Action]) -> None:
        for action in orders:
            match action:
                case actions.Say(text, loud):
                    if loud or self._options.verbose:
                        self._printer.note(text)
                case actions.Start():
                    self._start_ranks()
                case actions.Signal(number):
                    for rank in self._ranks:
                        self._send(rank, "S", {"signal": number})
                case actions.Kill(rank, why):
                    self._send(rank, "K", {"why": why})
                case actions.Release(rank):
                    if rank in self._ranks and self._ranks[rank].link.fileno() >= 0:
                        self._forget(self._ranks[rank])
                case actions.EndMpirun(number):
                    assert self._mpirun is not None
                    self._mpirun.send_signal(number)

    def _start_ranks(self) -> None:
        hellos = {rank: c.hello for rank, c in self._ranks.items() if c.hello is not None}
        located = {rank: (hello.hostname, hello.local_rank) for rank, hello in hellos.items()}
        first = self._ranks[0]
        address = _plain(first.link.getpeername()[0])
        if is_loopback(address):
            # Rank 0 is on this host: name the address by which another host reached it, if there is one.
            seen = [_plain(c.link.getsockname()[0]) for c in self._ranks.values()]
            address = next((a for a in seen if not is_loopback(a)), address)
        for rank, place in hosts.places(located).items():
            where = {**asdict(place), "master_addr": address, "master_port": hellos[0].port}
            go = {"place": where, "fault_tolerant": self._launch.fault_tolerant, "environ": self._terminal(rank)}
            stdin = self._stdin or b""
            for begin in range(0, len(stdin), _PIECE):
                self._send(rank, "F", stdin[begin : begin + _PIECE])
            self._send(rank, "G", go)

    def _end(self, number: int = signal.SIGTERM) -> None:
        """End the job, as the user wants it. From here on nothing waits for those who read the output."""
        self._is_ending = True
        self._listen_again()
        self._do(self.ledger.interrupted(number, time.monotonic()))

    def _terminal(self, rank: int) -> dict[str, str]:
        """Return what rank 0's progress bar needs to know of the terminal at the far end of its pipe."""
        if rank != 0 or not (_is_tty(1) or _is_tty(2)):
            return {}
        columns = shutil.get_terminal_size().columns - len(f"[{rank}]<stdout>: ")
        return {"COLUMNS": str(max(20, columns)), "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1"}

    def _send(self, rank: int, kind: str, payload: bytes | Mapping[str, Any]) -> None:
        try:
            self._ranks[rank].link.sendall(pack(kind, payload))
        except OSError:
            pass  # its end will be seen where it is read


def _plain(address: str) -> str:
    """Return an IPv4 address as such, which a socket for both kinds writes as ::ffff:10.0.0.1."""
    return address.removeprefix("::ffff:")


def _of_another_job(name: str) -> bool:
    """Left by whatever started the rank that this casyncrun runs in: a rank that inherited it would join that job."""
    of_starters = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PMIX_", "PMI_", "CASYNC_STARTED_", "CASYNC_RANK_PROCESS")
    return name.startswith(of_starters) and not name.startswith("PMIX_MCA_")


def _now() -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y")


def _is_tty(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _before_exec() -> None:
    """Put mpirun, before it starts, out of reach of the terminal's Ctrl-C, and have it die when this process does."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG

"""What starts on each rank, by mpirun or another: exports its environment, runs the command, reports how it ended.

mpirun's own exit status is 0 when the survivors of a failure leave with 0, and its output loses the line structure, so
each rank keeps a TCP connection to casyncrun and sends over it what the command writes and how it exits. The same
connection is the leash: when it breaks, casyncrun is gone and the command is killed with everything it started.

This file is run by its path with `python -I -S`, so it imports the standard library only. It also owns the
wire format: `pack` and `Unpacker` are imported by `casync.launcher.job`.

Without `CASYNC_LAUNCHER` in the environment (a line that `casyncrun --dry-run` printed) it exports the names and
becomes the command.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import hmac
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "LAUNCHER",
    "PROOF_BYTES",
    "REPORT_FD",
    "RESULT_FD",
    "TOKEN",
    "Unpacker",
    "hello_proof",
    "is_silent",
    "keep_alive",
    "main",
    "mpi_place",
    "pack",
    "rank_names",
    "remove_session",
]

LAUNCHER = "CASYNC_LAUNCHER"  # "address,address,...:port" of casyncrun
TOKEN = "CASYNC_LAUNCHER_TOKEN"  # known to the ranks of this job alone; it never travels over the connection
REPORT_FD = "CASYNC_REPORT_FD"  # where the command may write lines for casyncrun, see casync.rendezvous.launcher_pipe
RESULT_FD = "CASYNC_RESULT_FD"  # the file into which casync.launcher.task writes what its function returned

JOB_SECRET = ("CASYNC_JOB_SECRET", "CASYNC_JOB_SECRET_FILE")  # see casync.rendezvous.secret
PROOF_BYTES = hashlib.sha256().digest_size

_HEADER = struct.Struct("!BI")
_LONGEST = 1 << 26  # bytes of a frame
_CHUNK = 65536
_CONNECT_SECONDS = 5.0
_WELCOME_SECONDS = 10.0  # how long casyncrun may take to answer a greeting
_JOIN_SECONDS = 60.0  # how long a rank tries to be let in
_DRAIN_SECONDS = 0.5  # how long output is awaited from what the command left behind
_PARENT_SECONDS = 2.0  # how long mpirun or prted may take to die, before its session folder is left to it
_LAST_ACK_AT, _RETRANSMITS_AT, _PROBES_AT = 56, 2, 3  # in struct tcp_info (linux/tcp.h)
_SILENT_MS, _SILENT_TRIES = 30_000, 5
_CHECK_SECONDS = 5.0
_UNREAD = 1 << 20  # bytes for casyncrun; with more, nothing is read from the command, whose prints then wait
_PR_SET_PDEATHSIG = 1
_UNREACHABLE = 97


def pack(kind: str, payload: bytes | Mapping[str, Any] = b"") -> bytes:
    """One frame: a letter for its kind, a length, and bytes or JSON.

    From a rank: H hello, O stdout, E stderr, R report line, T stopped or continued, V a piece of its result, X exit.
    To a rank: W welcome, F a piece of what the command finds on its stdin, G go, S signal, K kill.
    """
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return _HEADER.pack(ord(kind), len(body)) + body


def hello_proof(token: str) -> bytes:
    """What a hello begins with: only who knows the token can say it, and the token does not follow from it."""
    return hmac.new(token.encode(), b"a rank greets casyncrun", hashlib.sha256).digest()


def job_secret(token: str) -> str:
    """What ranks that meet without MPI prove to each other that they know."""
    return hmac.new(token.encode(), b"the secret of a job", hashlib.sha256).hexdigest()


class Unpacker:
    """Cuts a byte stream into the frames that `pack` made. `longest`: bytes of a frame that are taken."""

    def __init__(self, longest: int = _LONGEST) -> None:
        self.longest = longest
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Add bytes; yield each (kind, body) that is complete. Raises `ValueError` for a frame that is too long."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > self.longest:
                raise ValueError(f"a frame of {length} bytes: there may be {self.longest}")
            if len(self._buffer) < _HEADER.size + length:
                return
            body = bytes(self._buffer[_HEADER.size : _HEADER.size + length])
            del self._buffer[: _HEADER.size + length]
            yield chr(kind), body


def keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute that the other end's host is gone, which TCP alone never does while idle.

    The other end's kernel answers for a process that is stopped, or does not read. TCP_USER_TIMEOUT would not wait for
    that one.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_silent(connection: socket.socket) -> bool:
    """Whether what was sent has not been acknowledged for half a minute. While that is so, nothing is probed."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_AT + 4)
    last_ack_ms = int.from_bytes(info[_LAST_ACK_AT:], sys.byteorder)
    again, probes = info[_RETRANSMITS_AT], info[_PROBES_AT]  # of a window that is closed, the peer answers each probe
    return last_ack_ms > _SILENT_MS and max(again, probes) >= _SILENT_TRIES


def rank_names(place: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that tell the command its place; torch's address only where the user has not set one."""
    names: dict[str, str] = {"PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1")}
    for key in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname"):
        if place.get(key) is not None:
            names |= {f"{prefix}_{key.upper()}": str(place[key]) for prefix in ("CASYNC", "HOROVOD")}
    # Horovod's words: what works without MPI is called gloo.
    by_sockets = _WITHOUT_MPI[0] in environ or environ.get("CASYNC_TRANSPORT") == "tcp"
    names["HOROVOD_CONTROLLER"] = names["HOROVOD_CPU_OPERATIONS"] = "gloo" if by_sockets else "mpi"
    torch_names = {
        "RANK": place["rank"],
        "WORLD_SIZE": place["size"],
        "LOCAL_RANK": place.get("local_rank"),
        "LOCAL_WORLD_SIZE": place.get("local_size"),
    }
    address = {"MASTER_ADDR": place.get("master_addr"), "MASTER_PORT": place.get("master_port")}
    torch_names |= {name: value for name, value in address.items() if name not in environ}
    return names | {name: str(value) for name, value in torch_names.items() if value is not None}


def _prctl_death_signal(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


# By casync.launcher.starter.
_WITHOUT_MPI = (
    "CASYNC_STARTED_RANK",
    "CASYNC_STARTED_SIZE",
    "CASYNC_STARTED_LOCAL_RANK",
    "CASYNC_STARTED_LOCAL_SIZE",
)
# The variables in which whoever started a rank says rank, size, local rank and (Slurm does not) local size.
_STARTERS = (
    _WITHOUT_MPI,
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)


def mpi_place(environ: Mapping[str, str], hostname: str) -> dict[str, Any]:
    """What the environment says of this process's place. None for what it does not say of its host.

    LookupError where it does not even say rank and size.
    """
    for rank, size, local_rank, local_size in _STARTERS:
        if rank in environ and size in environ:
            return {
                "rank": int(environ[rank]),
                "size": int(environ[size]),
                "local_rank": int(environ[local_rank]) if local_rank in environ else None,
                "local_size": int(environ[local_size]) if local_size in environ else None,
                "hostname": hostname,
            }
    names = ", ".join(dict.fromkeys(starter[0] for starter in _STARTERS))
    raise LookupError(f"none of {names} is set; start it through casyncrun")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _connect(where: str) -> socket.socket:
    """The first of casyncrun's addresses that answers. Several are offered: this host may see only one of them."""
    addresses, _, port = where.rpartition(":")
    errors = []
    for address in addresses.split(","):
        try:
            connection = socket.create_connection((address, int(port)), timeout=_CONNECT_SECONDS)
        except OSError as error:
            errors.append((address, error))
            continue
        keep_alive(connection)
        return connection
    told = ", ".join(f"{address} ({error.strerror or error})" for address, error in errors)
    # A packet may get lost; where every address says no, nobody is there.
    kind = TimeoutError if any(isinstance(error, TimeoutError) for _, error in errors) else OSError
    raise kind(f"cannot reach casyncrun at port {port} of {told}; name the network with --network-interface")


def _join(where: str, hello: bytes) -> tuple[socket.socket, Unpacker]:
    """A connection over which casyncrun has welcomed this rank, and what came after that.

    casyncrun hangs up on a connection that has proved nothing where others want its place, so a rank calls again.
    """
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        connection = None
        try:
            connection = _connect(where)
            connection.settimeout(_WELCOME_SECONDS)
            connection.sendall(hello)
            frames = Unpacker()
            while data := connection.recv(_HEADER.size):  # no more than the welcome, which has no body
                for kind, body in frames.feed(data):
                    if kind != "W":
                        raise PermissionError(body.decode(errors="replace") or "was sent away by casyncrun")
                    connection.settimeout(None)
                    return connection, frames
            raise ConnectionResetError("reached casyncrun, which hung up without a welcome")
        except (TimeoutError, ConnectionError, ValueError) as error:
            if connection is None and not isinstance(error, TimeoutError):
                raise  # nobody listens there
            if connection is not None:
                connection.close()
            if time.monotonic() >= deadline:
                raise OSError(error.args[-1]) from None
            time.sleep(_pause())


def _pause() -> float:
    """Between two calls: not the same for all ranks."""
    return 0.02 + 0.2 * os.urandom(1)[0] / 255


class _Rank:
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
        """Until at most `most` bytes are to be sent, or it says something, which is returned; empty: it is gone."""
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
        self._group = _start_guard()
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
                preexec_fn=functools.partial(_before_exec, self._group, os.getpid()),
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
            _no_core_dump()
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


def remove_session(daemon: int) -> None:
    """Remove the session folder of an mpirun or prted that was killed; several may try."""
    import shutil
    import tempfile

    for name in ("ompi", "prted"):
        shutil.rmtree(f"{tempfile.gettempdir()}/{name}.{daemon}", ignore_errors=True)


def _no_core_dump() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _start_guard() -> int:
    """Start the process that leads the command's process group, and return its id.

    The command dies with the wrapper by PDEATHSIG, but what the command started does not. The guard does nothing but
    wait for the wrapper's end of a pipe to close, whatever the wrapper died of, and then kills its group.
    """
    watched, held = os.pipe()
    pid = os.fork()
    if pid:
        os.close(watched)
        os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # passed to the group, meant for the command
        os.closerange(0, watched)
        os.closerange(watched + 1, 1024)  # the wrapper has a dozen; an open one would keep its connection alive
        os.read(watched, 1)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


def _before_exec(group: int, wrapper: int) -> None:
    """In the child: the guard's process group, and death with the wrapper."""
    os.setpgid(0, group)
    _prctl_death_signal(signal.SIGKILL)
    if os.getppid() != wrapper:
        os._exit(1)


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
    """`rank_entry.py -- COMMAND ...`"""
    command = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not command:
        sys.stderr.write("usage: rank_entry.py -- COMMAND ...\n")
        return 2
    try:
        place = mpi_place(os.environ, socket.gethostname())
    except LookupError as error:
        sys.stderr.write(f"casync.launcher.rank_entry: {error.args[0]}\n")
        return 1
    where = os.environ.get(LAUNCHER)
    if where is None:
        return _alone(command, place)
    # mpirun or prted dying is a SIGTERM here, not a SIGKILL: the handler still has to kill the command's group.
    _prctl_death_signal(signal.SIGTERM)
    hello = {**place, "pid": os.getpid(), "port": _free_port()}
    greeting = hello_proof(os.environ.get(TOKEN, "")) + json.dumps(hello).encode()
    try:
        connection, frames = _join(where, pack("H", greeting))
    except OSError as error:
        sys.stderr.write(f"casyncrun: rank {place['rank']} on host {place['hostname']} {error}\n")
        return _UNREACHABLE
    rank = _Rank(connection, frames, not place["local_rank"])
    go = rank.wait_for_go()
    return rank.leave(rank.run(command, go), bool(go.get("fault_tolerant")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How the ranks of a session that know where each listens connect: the lower rank of each pair to the higher.

Before a byte is read as a message both prove that they know the job's secret (`proof`). A call that fails on the
way is made again, as long as there is time: packets get lost, and a rank hangs up on those that have proved nothing
where others want their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import hmac
import os
import random
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from casync.config.settings import Config
from casync.errors import StartError
from casync.rendezvous import descriptors, proof
from casync.rendezvous.gate import Gate, exactly
from casync.rendezvous.interfaces import is_loopback, listen_at
from casync.rendezvous.pacing import Pacing, pacing
from casync.rendezvous.proof import Hello

__all__ = ["Doors", "Meeting", "Place", "listen", "pacing_of", "places", "run"]

_T = TypeVar("_T")

_COUNT = struct.Struct(">H")
"""The format in which the caller of the first connection of a pair says next how many follow."""
_HANDSHAKE_SECONDS = 10.0
_NEXT_PLACE_SECONDS = 3.0
"""A place that has not answered by then is tried beside the next one."""
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE)
_LATER_SECONDS = 60.0
_RTT_AT = 68
"""The offset of tcpi_rtt, in us, in the kernel's tcp_info (linux/tcp.h)."""


@dataclass
class Doors:
    """The places where a session listens: for ranks of this host, and for all."""

    sockets: list[socket.socket]
    told: dict[str, Any]


def listen(addresses: Sequence[str], stack: contextlib.ExitStack) -> Doors:
    """Listen at a port of each of `addresses`, and at a socket of this host, until `stack` is left."""
    far = listen_at(addresses[0] if len(addresses) == 1 else "")
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = f"casync-{secrets.token_hex(8)}"
    near.bind(f"\0{name}")  # in no file system: it is gone with the process
    near.listen(1024)
    for door in (*far, near):
        stack.enter_context(door)
        door.setblocking(False)
    return Doors([*far, near], {"near": name, "addresses": list(addresses), "port": far[0].getsockname()[1]})


@dataclass(frozen=True)
class Place:
    """A place where somebody listens."""

    family: socket.AddressFamily
    where: Any

    def __str__(self) -> str:
        return f"{self.where[0]} port {self.where[1]}" if self.family != socket.AF_UNIX else "a socket of this host"


def places(told: dict[str, Any], *, is_near: bool) -> list[Place]:
    """Return where another rank listens, the best first. A host may have networks of its own, as containers do."""
    addresses = told["addresses"]
    if not is_near:
        addresses = [address for address in addresses if not is_loopback(address)] or addresses
    far = [
        Place(socket.AF_INET6 if ":" in address else socket.AF_INET, (address, told["port"])) for address in addresses
    ]
    return [Place(socket.AF_UNIX, f"\0{told['near']}"), *far] if is_near else far


@dataclass
class Meeting:
    """One session's connections: of each pair the lower rank calls the higher. Number 0 is for heads; over it the
    caller says how many follow, by what `pace` makes of it.
    """

    me: int
    secret: bytes
    session: str
    pace: Callable[[socket.socket], Pacing]
    made: dict[tuple[int, int], socket.socket] = field(default_factory=dict)
    """The connections, by peer and number."""
    counts: dict[int, int] = field(default_factory=dict)
    """How many connections there are with each peer, as soon as that is known."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why the last call that was tried has failed, by peer."""

    async def meet(
        self, doors: Sequence[socket.socket], places: dict[int, list[Place]], timeout_s: float
    ) -> dict[int, list[socket.socket]]:
        """Return the sockets of each peer, blocking no more. Raises a `StartError` that names who did not come."""
        complete = asyncio.Event()

        def add(peer: int, number: int, connection: socket.socket) -> None:
            if (before := self.made.get((peer, number))) is not None:
                before.close()  # its caller has not heard that it was welcome
            self.made[peer, number] = connection
            if len(self.counts) == len(places) and len(self.made) == sum(self.counts.values()):
                complete.set()

        gate = Gate(self.secret, self._tag, len(places) + 1)
        welcome = functools.partial(self._welcome, add=add, expected=set(places))
        tasks = [asyncio.create_task(gate.stand(door, welcome)) for door in doors]
        calls = [asyncio.create_task(self._call_all(peer, at, add)) for peer, at in places.items() if peer > self.me]
        waiting = asyncio.create_task(complete.wait())
        try:
            await asyncio.wait_for(self._first_error(waiting, [*calls, *tasks]), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            missing = [peer for peer in places if len(self.sockets(peer)) != self.counts.get(peer)]
            reasons = [f"rank {peer}: {self.reasons[peer]}" for peer in missing if peer in self.reasons]
            raise StartError(
                f"rank {self.me} is not connected with ranks {missing} after {timeout_s:.0f} s "
                f"(CASYNC_START_TIMEOUT_SECONDS): may they reach each other? {'; '.join([*reasons, ''])}"
                "CASYNC_NETWORK_INTERFACE names another network"
            ) from None
        except OSError as error:
            if error.errno in _OF_THIS_PROCESS:
                raise StartError(descriptors.exhausted(f"rank {self.me} cannot connect")) from None
            raise
        finally:
            for task in [*tasks, *calls, waiting]:
                task.cancel()
            await asyncio.gather(*tasks, *calls, waiting, return_exceptions=True)
        return {peer: self.sockets(peer) for peer in places}

    def close(self) -> None:
        """Hang up."""
        for connection in self.made.values():
            connection.close()

    def sockets(self, peer: int) -> list[socket.socket]:
        """Return the connections to `peer` that there are, in the order of their numbers."""
        return [connection for (of, _), connection in sorted(self.made.items(), key=lambda item: item[0]) if of == peer]

    @staticmethod
    async def _first_error(waiting: asyncio.Task[Any], calls: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until `waiting` is over. An error that one of `calls` raises before is raised here."""
        left: set[asyncio.Task[Any]] = {waiting, *calls}
        while not waiting.done():
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    # --- who calls ----------------------------------------------------------------------------------------------------

    async def _call_all(self, peer: int, places: Sequence[Place], add: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            heads, place = await self._call(peer, 0, places)
            places = [place, *(other for other in places if other != place)]  # all of a pair by one network
            chosen = self.pace(heads)
            try:
                await loop.sock_sendall(heads, _COUNT.pack(1 + chosen.streams))
                await exactly(heads, len(proof.WELCOME))
                break
            except (OSError, EOFError) as error:
                heads.close()
                self.reasons[peer] = f"{place}: {_reason(error)}"
        self.counts[peer] = 1 + chosen.streams
        add(peer, 0, _prepared(heads, chosen))
        for number in range(1, self.counts[peer]):
            connection, _ = await self._call(peer, number, places)
            add(peer, number, _prepared(connection, chosen))

    async def _call(self, peer: int, number: int, places: Sequence[Place]) -> tuple[socket.socket, Place]:
        """A connection over which both have proved themselves, and where it leads. Raises `StartError` if nobody
        listens at any place, or one is there who does not know the secret.
        """
        while True:
            errors: dict[Place, Exception] = {}
            untried = list(places)
            while untried and (found := await _first_to_answer(untried, errors)) is not None:
                connection, place = found
                try:
                    await asyncio.wait_for(self._prove_as_caller(connection, peer, number), _HANDSHAKE_SECONDS)
                except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
                    connection.close()
                    errors[place] = error
                except BaseException:
                    connection.close()
                    raise
                else:
                    return connection, place
                untried = [other for other in untried if other not in errors]
            told = "; ".join(f"{place}: {_reason(error)}" for place, error in errors.items())
            self.reasons[peer] = told
            if all(_is_final(error) for error in errors.values()):
                raise StartError(
                    f"rank {self.me} cannot connect to rank {peer} ({told}). CASYNC_NETWORK_INTERFACE names another "
                    "network"
                )
            await asyncio.sleep(random.uniform(0.01, 0.1))

    async def _prove_as_caller(self, connection: socket.socket, peer: int, number: int) -> None:
        hello = Hello(self._tag, self.me, peer, number).pack()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, hello)
        nonce = await exactly(connection, proof.NONCE_BYTES)
        said = await exactly(connection, proof.PROOF_BYTES)
        if not hmac.compare_digest(said, proof.proof(self.secret, b"called", hello, nonce)):
            raise ValueError("who listens there does not know this job's secret")
        await loop.sock_sendall(connection, proof.proof(self.secret, b"caller", hello, nonce))
        if number:
            await exactly(connection, len(proof.WELCOME))

    # --- who is called ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _tag(self) -> bytes:
        return proof.tag_of(self.secret, self.session)

    async def _welcome(self, hello: Hello, connection: socket.socket, add: Any, expected: set[int]) -> None:
        """A connection that has proved that it is of this session."""
        if hello.caller not in expected or hello.called != self.me:
            raise ValueError("nobody expects it")
        if hello.number == 0:
            said = await asyncio.wait_for(exactly(connection, _COUNT.size), _HANDSHAKE_SECONDS)
            self.counts[hello.caller] = _COUNT.unpack(said)[0]
        await asyncio.get_running_loop().sock_sendall(connection, proof.WELCOME)
        add(hello.caller, hello.number, _prepared(connection, self.pace(connection)))


async def _first_to_answer(
    places: Sequence[Place], errors: dict[Place, Exception]
) -> tuple[socket.socket, Place] | None:
    """The first place that a connection is made to. One that keeps silent is tried beside the next; why one cannot be
    reached goes into `errors`. None: none can.
    """
    tasks: dict[asyncio.Task[socket.socket], Place] = {}
    left = list(places)
    try:
        while left or tasks:
            if left:
                place = left.pop(0)
                tasks[asyncio.create_task(_connected(place))] = place
            done, _ = await asyncio.wait(
                tasks, timeout=_NEXT_PLACE_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (error := task.exception()) is None:
                    return task.result(), tasks.pop(task)
                if not isinstance(error, OSError) or error.errno in _OF_THIS_PROCESS:
                    raise error
                errors[tasks.pop(task)] = error
        return None
    finally:
        for task in tasks:
            task.cancel()
        for late in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(late, socket.socket):
                late.close()


async def _connected(place: Place) -> socket.socket:
    connection = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, place.where)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_final(error: Exception) -> bool:
    """Whether there is no sense in calling again: nobody is there, or somebody else."""
    number = error.errno if isinstance(error, OSError) else None
    return isinstance(error, ValueError) or number in (errno.ECONNREFUSED, errno.ENETUNREACH)


def _reason(error: Exception) -> str:
    """Say in words why it failed. asyncio's own words for an OSError only describe its call."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__


def _prepared(connection: socket.socket, chosen: Pacing) -> socket.socket:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if chosen.congestion:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen.congestion.encode())
    return connection


def notice_loss(connection: socket.socket, config: Config) -> None:
    """Have the kernel notice that the other host is gone, also where nothing is sent.

    Probes are answered by the kernel of a peer that does not read, and not by a host or a network that is gone. Linux
    counts the time in which the other end does not read, too, and that may be long: so it is given up later than
    CaSync itself gives up, which says what for.
    """
    if connection.family == socket.AF_UNIX:
        return
    patience_s = max(config.timeout_s, config.peer_timeout_s) + _LATER_SECONDS
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 30),
        (socket.TCP_KEEPINTVL, 10),
        (socket.TCP_KEEPCNT, 9),
        (socket.TCP_USER_TIMEOUT, min(int(patience_s * 1000), 2**31 - 1)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def pacing_of(connection: socket.socket, config: Config) -> Pacing:
    """Choose by the round trip that the kernel measured. Raises `StartError` for a congestion control it refuses."""
    if connection.family == socket.AF_UNIX:
        return Pacing(config.tcp_streams or 1, "")
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    rtt_s = int.from_bytes(info[_RTT_AT:], sys.byteorder) / 1e6
    chosen = pacing(rtt_s, may_bbr=_may("bbr"), streams=config.tcp_streams, congestion=config.tcp_congestion)
    if chosen.congestion and not _may(chosen.congestion):
        raise StartError(
            f"CASYNC_TCP_CONGESTION={chosen.congestion}: this kernel does not have it, or does not let this user have "
            "it; net.ipv4.tcp_allowed_congestion_control lists those that it does"
        )
    return chosen


@functools.cache
def _may(congestion: str) -> bool:
    """Whether the kernel lets this process choose it. Tried on a socket of its own: one that had bbr once is paced for
    ever.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        except OSError:
            return False
    return True


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` on a thread of its own: this one may run an event loop already, as in a notebook."""
    ended: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="casync-connect", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return ended[0]

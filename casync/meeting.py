"""How the ranks of a session that know where each listens connect: the lower rank of each pair to the higher.

Before a byte is read as a message both prove, by an HMAC over what the other has drawn, that they know the job's
secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from casync.config import Config
from casync.errors import CasyncError
from casync.streams import Pacing, pacing

__all__ = ["Doors", "Meeting", "Place", "listen", "pacing_of", "places", "run"]

_T = TypeVar("_T")

_MAGIC = b"CaSync01"
_HELLO = struct.Struct(">8s16sIH16s")
"""Magic, which session, who calls, the number of the connection between the two, what the caller has drawn."""
_COUNT = struct.Struct(">H")
"""What the caller of the first connection of a pair says next: how many follow."""
_NONCE_BYTES = 16
_PROOF_BYTES = hashlib.sha256().digest_size
_HANDSHAKE_SECONDS = 10.0
_RTT_AT = 68
"""Of tcpi_rtt, in us, in the kernel's tcp_info (linux/tcp.h)."""


@dataclass
class Doors:
    """Where a session listens: for those of this host, and for all."""

    sockets: list[socket.socket]
    told: dict[str, Any]


def listen(address: str, stack: contextlib.ExitStack) -> Doors:
    """At a port of `address`, and at a socket of this host; until `stack` is left."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    far = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    far.bind((address, 0))
    near = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    name = f"casync-{secrets.token_hex(8)}"
    near.bind(f"\0{name}")  # in no file system: it is gone with the process
    for door in (far, near):
        door.listen(1024)
        door.setblocking(False)
    return Doors([far, near], {"near": name, "address": address, "port": far.getsockname()[1]})


@dataclass(frozen=True)
class Place:
    """Where somebody listens."""

    family: socket.AddressFamily
    where: Any

    def __str__(self) -> str:
        return f"{self.where[0]} port {self.where[1]}" if self.family != socket.AF_UNIX else "a socket of this host"


def places(told: dict[str, Any], *, is_near: bool) -> list[Place]:
    """Where another rank listens, the best first. A host may have several networks of its own, as containers do."""
    family = socket.AF_INET6 if ":" in told["address"] else socket.AF_INET
    far = Place(family, (told["address"], told["port"]))
    return [Place(socket.AF_UNIX, f"\0{told['near']}"), far] if is_near else [far]


@dataclass
class Meeting:
    """One session's connections: of each pair the lower rank calls the higher. Number 0 is for heads; over it the
    caller says how many follow, by what `pace` makes of it.
    """

    me: int
    secret: bytes
    session: bytes
    pace: Callable[[socket.socket], Pacing]
    made: dict[tuple[int, int], socket.socket] = field(default_factory=dict)
    """By peer and number."""
    counts: dict[int, int] = field(default_factory=dict)
    """By peer, how many there are, as soon as that is known."""

    async def meet(
        self, doors: Sequence[socket.socket], places: dict[int, list[Place]], timeout_s: float
    ) -> dict[int, list[socket.socket]]:
        """Per peer its sockets, blocking no more. Raises `CasyncError` that names who did not come."""
        complete = asyncio.Event()

        def add(peer: int, number: int, connection: socket.socket) -> None:
            self.made[peer, number] = connection
            if len(self.counts) == len(places) and len(self.made) == sum(self.counts.values()):
                complete.set()

        tasks = [asyncio.create_task(self._answer(door, add, set(places))) for door in doors]
        calls = [asyncio.create_task(self._call_all(peer, at, add)) for peer, at in places.items() if peer > self.me]
        waiting = asyncio.create_task(complete.wait())
        try:
            await asyncio.wait_for(self._first_error(waiting, calls), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            missing = [peer for peer in places if len(self.sockets(peer)) != self.counts.get(peer)]
            raise CasyncError(
                f"rank {self.me} is not connected with ranks {missing} after {timeout_s:.0f} s "
                "(CASYNC_START_TIMEOUT_SECONDS): may they reach each other? CASYNC_NETWORK_INTERFACE names another "
                "network"
            ) from None
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
        """Those that there are, in the order of their numbers."""
        return [connection for (of, _), connection in sorted(self.made.items(), key=lambda item: item[0]) if of == peer]

    @staticmethod
    async def _first_error(waiting: asyncio.Task[Any], calls: Sequence[asyncio.Task[Any]]) -> None:
        """Until `waiting` is over, or one of `calls` has raised, which is raised."""
        left: set[asyncio.Task[Any]] = {waiting, *calls}
        while not waiting.done():
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    # --- who calls ----------------------------------------------------------------------------------------------------

    async def _call_all(self, peer: int, places: Sequence[Place], add: Any) -> None:
        heads = await self._call(peer, 0, places)
        chosen = self.pace(heads)
        self.counts[peer] = 1 + chosen.streams
        await asyncio.get_running_loop().sock_sendall(heads, _COUNT.pack(self.counts[peer]))
        add(peer, 0, _prepared(heads, chosen))
        for number in range(1, self.counts[peer]):
            add(peer, number, _prepared(await self._call(peer, number, places), chosen))

    async def _call(self, peer: int, number: int, places: Sequence[Place]) -> socket.socket:
        errors = []
        for place in places:
            connection = socket.socket(place.family, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, place.where)
                await asyncio.wait_for(self._prove_as_caller(connection, number), _HANDSHAKE_SECONDS)
            except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
                connection.close()
                errors.append(f"{place}: {_reason(error)}")
                continue
            except BaseException:
                connection.close()
                raise
            return connection
        raise CasyncError(
            f"rank {self.me} cannot connect to rank {peer} ({'; '.join(errors)}). CASYNC_NETWORK_INTERFACE names "
            "another network"
        )

    async def _prove_as_caller(self, connection: socket.socket, number: int) -> None:
        hello = _HELLO.pack(_MAGIC, self.session, self.me, number, secrets.token_bytes(_NONCE_BYTES))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, hello)
        nonce = await _exactly(connection, _NONCE_BYTES)
        if not hmac.compare_digest(await _exactly(connection, _PROOF_BYTES), self._proof(b"called", hello, nonce)):
            raise ValueError("who listens there does not know this job's secret")
        await loop.sock_sendall(connection, self._proof(b"caller", hello, nonce))

    # --- who is called ------------------------------------------------------------------------------------------------

    async def _answer(self, door: socket.socket, add: Any, expected: set[int]) -> None:
        welcomes = set()
        try:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(door)
                connection.setblocking(False)
                welcomes.add(asyncio.create_task(self._welcome(connection, add, expected)))
        finally:
            for task in welcomes:
                task.cancel()
            await asyncio.gather(*welcomes, return_exceptions=True)

    async def _welcome(self, connection: socket.socket, add: Any, expected: set[int]) -> None:
        """A stranger is left alone."""
        try:
            peer, number = await asyncio.wait_for(self._prove_as_called(connection), _HANDSHAKE_SECONDS)
            if peer not in expected or (peer, number) in self.made:
                raise ValueError("nobody expects it")
            if number == 0:
                self.counts[peer] = _COUNT.unpack(await _exactly(connection, _COUNT.size))[0]
        except (OSError, EOFError, ValueError, struct.error, asyncio.TimeoutError):
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            add(peer, number, _prepared(connection, self.pace(connection)))

    async def _prove_as_called(self, connection: socket.socket) -> tuple[int, int]:
        hello = await _exactly(connection, _HELLO.size)
        magic, session, peer, number, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or session != self.session:
            raise ValueError("of another session")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, nonce + self._proof(b"called", hello, nonce))
        if not hmac.compare_digest(await _exactly(connection, _PROOF_BYTES), self._proof(b"caller", hello, nonce)):
            raise ValueError("it does not know the secret")
        return peer, number

    def _proof(self, whose: bytes, hello: bytes, nonce: bytes) -> bytes:
        return hmac.new(self.secret, whose + hello + nonce, hashlib.sha256).digest()


async def _exactly(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = await asyncio.get_running_loop().sock_recv(connection, count - len(got))
        if not more:
            raise EOFError("it hung up")
        got += more
    return got


def _reason(error: Exception) -> str:
    """In words: asyncio's own of an OSError are those of its call."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__


def _prepared(connection: socket.socket, chosen: Pacing) -> socket.socket:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if chosen.congestion:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen.congestion.encode())
    return connection


def pacing_of(connection: socket.socket, config: Config) -> Pacing:
    """By the round trip that the kernel has measured. Raises `CasyncError` for a congestion control that it refuses."""
    if connection.family == socket.AF_UNIX:
        return Pacing(config.tcp_streams or 1, "")
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    rtt_s = int.from_bytes(info[_RTT_AT:], sys.byteorder) / 1e6
    chosen = pacing(rtt_s, may_bbr=_may("bbr"), streams=config.tcp_streams, congestion=config.tcp_congestion)
    if chosen.congestion and not _may(chosen.congestion):
        raise CasyncError(
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
    """On a thread of its own: this one may run an event loop already, as in a notebook."""
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

"""A store of words at a port of rank 0, for ranks that have no store of torch's.

A connection begins with the proof of the job's secret (`proof`). Then the client asks, and the server answers,
as often as it likes: a length of four bytes, and JSON. Without a secret anybody who speaks this protocol is let in.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hmac
import json
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from casync.errors import StartError
from casync.rendezvous import proof
from casync.rendezvous.gate import Gate, exactly
from casync.rendezvous.interfaces import LOOPBACK, listen_at
from casync.rendezvous.proof import Hello

__all__ = ["SocketStore", "speaks"]

_LENGTH = struct.Struct(">I")
_LONGEST = 1 << 24
"""Bytes of a request or an answer."""
_LONGEST_WAIT_S = 3600.0
_DIAL_SECONDS = 15.0
"""How long one address is tried: a SYN that is lost is sent again after 1, 3 and 7 s."""
_DIAL_ONE_OF_SECONDS = 4.0
"""How long each is tried where there are several: of two networks one may be closed."""
_SAY_SECONDS = 10.0
_GONE_SECONDS = 5.0
"""A port that was open, and has refused for so long, is one of a process that has ended."""
_PAUSE_SECONDS = 0.1
_RANKS = 16
# A client of torch's store begins with these words: VALIDATE and a magic number, then PING and any four bytes, which
# the server repeats (torch/csrc/distributed/c10d/TCPStoreBackend.hpp).
_TORCH_NONCE = b"ping"
_TORCH_PROBE = bytes.fromhex("00cef7853c0d") + _TORCH_NONCE


def _tag(secret: bytes) -> bytes:
    return proof.tag_of(secret, "store")


# --- who listens ------------------------------------------------------------------------------------------------------


class _Server:
    """Holds the words, on a thread of its own. It lives as long as the process."""

    def __init__(self, doors: Sequence[socket.socket], secret: bytes, ranks: int) -> None:
        self._doors = doors
        self._gate = Gate(secret, _tag(secret), ranks, aside=_answer_torch)
        self._words: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._leave_to_parent)
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="casync-store", daemon=True).start()

    def _leave_to_parent(self) -> None:
        """A child would keep the port taken, and clients waiting, as long as it lives."""
        for one in (*self._doors, *self._connections):
            with contextlib.suppress(OSError):
                os.close(one.detach())

    async def _serve(self) -> None:
        await asyncio.gather(*(self._stand(door) for door in self._doors))

    async def _stand(self, door: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                await self._gate.stand(door, self._welcome)
            await asyncio.sleep(_PAUSE_SECONDS)  # no descriptor is left: others may be closed meanwhile

    async def _welcome(self, _: Hello, connection: socket.socket) -> None:
        self._connections.add(connection)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, proof.WELCOME)
        while True:
            (length,) = _LENGTH.unpack(await exactly(connection, _LENGTH.size))
            if length > _LONGEST:
                raise ValueError("too long")
            try:
                answer = await self._answer(json.loads(await exactly(connection, length)))
            except (KeyError, TypeError, OverflowError, RecursionError) as error:
                raise ValueError("no request") from error
            await loop.sock_sendall(connection, _packed(answer))

    async def _answer(self, asked: dict[str, Any]) -> dict[str, str]:
        async with self._changed:
            if "put" in asked:
                key = str(asked["put"])
                self._words.setdefault(key, base64.b64decode(asked["word"]))
                self._changed.notify_all()
                keys = [key]
            else:
                keys = [str(key) for key in asked["wait"]]
                limit = float(asked["timeout_s"])
                if not 0 <= limit <= _LONGEST_WAIT_S:  # nor is it NaN
                    raise ValueError("no time to wait")
                with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                    await asyncio.wait_for(
                        self._changed.wait_for(lambda: all(key in self._words for key in keys)), limit
                    )
            return {key: base64.b64encode(self._words[key]).decode() for key in keys if key in self._words}


def _answer_torch(begun: bytes) -> bytes:
    """A rank that asks whether this is a store of torch's (`speaks`)."""
    return proof.MAGIC if begun == _TORCH_PROBE else b""


def _packed(said: dict[str, Any]) -> bytes:
    body = json.dumps(said).encode()
    return _LENGTH.pack(len(body)) + body


# --- who calls --------------------------------------------------------------------------------------------------------


class _Dial:
    """Connects to the first of several places that answers, over as many calls as it takes."""

    def __init__(self, places: Sequence[tuple[socket.AddressFamily, Any]]) -> None:
        self._places = list(places)
        self._limit = _DIAL_SECONDS if len(places) == 1 else _DIAL_ONE_OF_SECONDS
        self._pending: socket.socket | None = None
        self._since = 0.0

    def connect(self, until: float) -> socket.socket | None:
        """A connection; None: not by `until`. Raises OSError if the place that was tried now cannot be reached."""
        if self._pending is None:
            family, where = self._places[0]
            self._places = [*self._places[1:], self._places[0]]
            self._pending, self._since = socket.socket(family, socket.SOCK_STREAM), time.monotonic()
            self._pending.setblocking(False)
            self._check(self._pending.connect_ex(where))
        with selectors.DefaultSelector() as selector:
            selector.register(self._pending, selectors.EVENT_WRITE)
            is_there = selector.select(max(0.0, min(until, self._since + self._limit) - time.monotonic()))
        if not is_there:
            if time.monotonic() >= self._since + self._limit:
                self._check(errno.ETIMEDOUT)
            return None
        self._check(self._pending.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        connected, self._pending = self._pending, None
        return connected

    def _check(self, number: int) -> None:
        if number not in (0, errno.EINPROGRESS):
            assert self._pending is not None
            self._pending.close()
            self._pending = None
            raise OSError(number, os.strerror(number))


class SocketStore:
    """The words are with rank 0, which listens at the address as long as its process lives."""

    def __init__(
        self, address: str, port: int, serves: bool, timeout_s: float, *, ranks: int = _RANKS, secret: bytes = b""
    ) -> None:
        self._timeout_s = timeout_s
        self._secret = secret
        self._where = f"{address} port {port}"
        self._dial = _Dial(_resolved(address, port))
        self._connection: socket.socket | None = None
        self._lost_since: float | None = None
        self._was_there = False
        if serves:
            try:
                doors = listen_at(address if address in LOOPBACK else "", port)
            except OSError as error:
                raise StartError(
                    f"rank 0 cannot listen at MASTER_PORT={port}: {error.strerror}. Another job may use it: choose "
                    "another port"
                ) from None
            _Server(doors, secret, ranks)

    def put(self, key: str, word: bytes) -> bytes:
        request = {"put": key, "word": base64.b64encode(word).decode()}
        while not (found := self._ask(request, time.monotonic() + self._timeout_s, 0.0)):
            pass
        return found[key]

    def wait(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        until = time.monotonic() + timeout_s
        return self._ask({"wait": list(keys)}, until, timeout_s)

    def _ask(self, request: dict[str, Any], until: float, waits_s: float) -> dict[str, bytes]:
        """Ask once rank 0 is there. Empty: it was not, by `until`. Raises `StartError` if it is away for too long."""
        while True:
            try:
                if self._connection is None:
                    if (connected := self._dial.connect(until)) is None:
                        self._check_lost(TimeoutError("it does not answer"))
                        return {}
                    self._connection = _proved(connected, self._secret)
                left = max(0.0, until - time.monotonic())
                self._connection.settimeout(min(waits_s, left) + _SAY_SECONDS)
                self._connection.sendall(_packed({**request, "timeout_s": min(left, _LONGEST_WAIT_S)}))
                answer = _answered(self._connection)
                self._lost_since, self._was_there = None, True
                return {str(key): base64.b64decode(word) for key, word in answer.items()}
            except (OSError, EOFError, ValueError) as error:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                self._check_lost(error)
                if time.monotonic() >= until:
                    return {}
            time.sleep(_PAUSE_SECONDS)

    def _check_lost(self, error: Exception) -> None:
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if self._was_there and isinstance(error, ConnectionRefusedError) and now >= self._lost_since + _GONE_SECONDS:
            raise StartError(f"rank 0, which listened at {self._where}, has ended: its own output says why") from None
        if now >= self._lost_since + self._timeout_s:
            raise StartError(
                f"nobody answers at {self._where} (MASTER_ADDR, MASTER_PORT), where rank 0 should be, for "
                f"{self._timeout_s:g} s: {error}. Is rank 0 running, may it be reached, and is no other job at that "
                "port?"
            ) from None


def _resolved(address: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as error:  # UnicodeError: a part of the name is empty or too long
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"MASTER_ADDR={address} cannot be resolved: {reason}") from None
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


def _proved(connection: socket.socket, secret: bytes) -> socket.socket:
    try:
        connection.settimeout(_SAY_SECONDS)
        hello = Hello(_tag(secret)).pack()
        connection.sendall(hello)
        answer = _exactly(connection, proof.NONCE_BYTES + proof.PROOF_BYTES)
        nonce, said = answer[: proof.NONCE_BYTES], answer[proof.NONCE_BYTES :]
        if not hmac.compare_digest(said, proof.proof(secret, b"called", hello, nonce)):
            raise ValueError("who listens there does not know this job's secret (CASYNC_JOB_SECRET)")
        connection.sendall(proof.proof(secret, b"caller", hello, nonce))
        _exactly(connection, len(proof.WELCOME))
    except BaseException:
        connection.close()
        raise
    return connection


def _answered(connection: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _LONGEST:
        raise ValueError(f"an answer of {length} bytes")
    answer = json.loads(_exactly(connection, length))
    if not isinstance(answer, dict):
        raise ValueError("what listens there is no store of CaSync's")
    return answer


def _exactly(connection: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            raise EOFError("who listens there hung up")
        got += more
    return bytes(got)


def speaks(address: str, port: int, timeout_s: float) -> str:
    """Return whose store listens there: "casync" or "torch". Raises `StartError` if none does within `timeout_s`."""
    dial = _Dial(_resolved(address, port))
    until = time.monotonic() + timeout_s
    error: Exception = TimeoutError("it does not answer")
    while time.monotonic() < until:
        try:
            if (connection := dial.connect(until)) is None:
                break
            with connection:
                connection.settimeout(_SAY_SECONDS)
                connection.sendall(_TORCH_PROBE)
                said = _exactly(connection, len(_TORCH_NONCE))
            if said in (_TORCH_NONCE, proof.MAGIC[: len(said)]):
                return "torch" if said == _TORCH_NONCE else "casync"
            error = ValueError("what listens there is neither CaSync's store nor torch's")
        except (OSError, EOFError) as caught:
            error = caught
        time.sleep(_PAUSE_SECONDS)
    raise StartError(
        f"nobody answers at {address} port {port} (MASTER_ADDR, MASTER_PORT), where rank 0 should be, for "
        f"{timeout_s:g} s: {error}. Is rank 0 running, may it be reached, and is no other job at that port?"
    )

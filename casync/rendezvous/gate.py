"""Lets in whoever proves that it knows the job's secret. All others are hung up on (`strangers` says when).

gate = Gate(secret, tag, ranks=4)
await gate.stand(door, welcome)    # a task for each door; `welcome(hello, connection)` gets those that have proved it
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import secrets
import socket
import time
from collections.abc import Awaitable, Callable

from casync.rendezvous import proof
from casync.rendezvous.proof import Hello
from casync.rendezvous.strangers import SECONDS, Strangers

__all__ = ["Gate", "exactly"]

Welcome = Callable[[Hello, socket.socket], Awaitable[None]]
"""Raises OSError, EOFError or `ValueError` for a connection to be closed."""
Aside = Callable[[bytes], bytes]
"""Gives the answer to a caller whose first bytes are no hello. An empty answer is not sent."""

_PROBE_BYTES = 10
_NOBODY = (errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
"""Errors of accept() that are the connection's (accept(2))."""


class Gate:
    """The doors of one session or store, over which strangers are counted together."""

    def __init__(self, secret: bytes, tag: bytes, ranks: int, aside: Aside = lambda _: b"") -> None:
        self._secret = secret
        self._tag = tag
        self._aside = aside
        self._strangers: Strangers[asyncio.Task[None]] = Strangers(ranks)

    async def stand(self, door: socket.socket, welcome: Welcome) -> None:
        """Take connections until cancelled. Raises OSError if no connection can be taken any more."""
        tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        door.setblocking(False)
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(door)
                except OSError as error:
                    if error.errno in _NOBODY:
                        continue
                    raise
                connection.setblocking(False)
                task = loop.create_task(self._one(connection, welcome))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if (dropped := self._strangers.enter(task, time.monotonic())) is not None:
                    dropped.cancel()
                # A caller that is here gets its turn first: the next caller may take its place.
                await asyncio.sleep(0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, connection: socket.socket, welcome: Welcome) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            hello = await asyncio.wait_for(self._prove(connection, task), SECONDS)
            self._strangers.leave(task)
            await welcome(hello, connection)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError):
            connection.close()
        except BaseException:
            connection.close()
            raise
        finally:
            self._strangers.leave(task)

    async def _prove(self, connection: socket.socket, task: asyncio.Task[None]) -> Hello:
        loop = asyncio.get_running_loop()
        begun = await exactly(connection, _PROBE_BYTES)
        if not begun.startswith(proof.MAGIC):
            await loop.sock_sendall(connection, self._aside(begun))
            raise ValueError("no rank")
        packed = begun + await exactly(connection, Hello.SIZE - len(begun))
        hello = Hello.unpack(packed)
        is_ours = hmac.compare_digest(hello.tag, self._tag)
        if is_ours:
            self._strangers.believe(task)
        # A caller with another secret sees by our proof that the secrets differ, and can say so.
        nonce = secrets.token_bytes(proof.NONCE_BYTES)
        await loop.sock_sendall(connection, nonce + proof.proof(self._secret, b"called", packed, nonce))
        said = await exactly(connection, proof.PROOF_BYTES)
        if not is_ours or not hmac.compare_digest(said, proof.proof(self._secret, b"caller", packed, nonce)):
            raise ValueError("it does not know the secret")
        return hello


async def exactly(connection: socket.socket, count: int) -> bytes:
    """Raises EOFError if the other side has hung up."""
    got = b""
    while len(got) < count:
        more = await asyncio.get_running_loop().sock_recv(connection, count - len(got))
        if not more:
            raise EOFError("it hung up")
        got += more
    return got

"""Any bytes at the ports where ranks meet: casyncrun's listener, the store at MASTER_PORT, and a session's greeting.

The first byte says which port, and whether the rest comes with the proof of the secret, as from a rank that is broken.
Legal is that the connection is hung up on, or answered; an exception that leaves `look_at` is a finding.
run_atheris.py calls it with what atheris makes up, and tests/python/rendezvous/test_corpus.py with what is kept.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import socket
from typing import Any
from unittest import mock

from casync.launcher.job import Job, _Connection
from casync.launcher.mpirun import Launch
from casync.launcher.options import parse
from casync.launcher.rank.wire import hello_proof, pack
from casync.rendezvous import proof, socket_store
from casync.rendezvous.gate import Gate
from casync.rendezvous.handshake import Meeting
from casync.rendezvous.pacing import Pacing
from casync.rendezvous.proof import Hello

__all__ = ["look_at"]

_SECRET = b"fuzzed fuzzed fuzzed"
_NONCES = proof.NONCE_BYTES + proof.PROOF_BYTES
_WAIT_S = 0.01  # the longest that a request may wait


class _Fuzzed:
    """What listens, once for all inputs."""

    def __init__(self) -> None:
        self.store = object.__new__(socket_store._Server)
        self.store._words, self.store._connections = {}, set()  # type: ignore[assignment]

    def listener(self, proved: bool, said: bytes) -> None:
        job = Job(parse(["-np", "2", "true"]), Launch(("true",), "", False), {}, write=lambda *_: None)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(pack("H", hello_proof(job._token) + said) if proved else said)
            theirs.shutdown(socket.SHUT_WR)
            connection = _Connection(ours)
            job._strangers.enter(connection, 0.0)
            job._selector.register(ours, selectors.EVENT_READ, None)
            while ours.fileno() >= 0:
                job._of_rank(ours, connection)
        job._outlet.close()
        job._selector.close()

    async def meeting(self, proved: bool, said: bytes) -> None:
        meeting = Meeting(1, _SECRET, "fuzz", lambda _: Pacing(1, ""))
        welcome = functools.partial(meeting._welcome, add=lambda _, __, connection: connection.close(), expected={0})
        await self._at_gate(Gate(_SECRET, meeting._tag, 2), welcome, meeting._tag, proved, said)

    async def words(self, proved: bool, said: bytes) -> None:
        self.store._changed = asyncio.Condition()
        self.store._words.clear()
        tag = socket_store._tag(_SECRET)
        gate = Gate(_SECRET, tag, 2, aside=socket_store._answer_torch)
        await self._at_gate(gate, self.store._welcome, tag, proved, said)

    async def _at_gate(self, gate: Gate, welcome: Any, tag: bytes, proved: bool, said: bytes) -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        with theirs:
            for end in (ours, theirs):
                end.setblocking(False)
            task = loop.create_task(gate._one(ours, welcome))
            if proved:
                hello = Hello(tag, 0, 1, said[0] if said else 0).pack()
                theirs.send(hello)
                nonce = (await loop.sock_recv(theirs, _NONCES))[: proof.NONCE_BYTES]
                theirs.send(proof.proof(_SECRET, b"caller", hello, nonce))
            theirs.send(said)
            theirs.shutdown(socket.SHUT_WR)
            await task


_fuzzed: list[_Fuzzed] = []


def look_at(data: bytes) -> None:
    if not _fuzzed:
        _fuzzed.append(_Fuzzed())
    fuzzed = _fuzzed[0]
    which, said = data[0] if data else 0, data[1:]
    proved = bool(which & 1)
    if which % 3 == 0:
        fuzzed.listener(proved, said)
    else:
        with mock.patch.object(socket_store, "_LONGEST_WAIT_S", _WAIT_S):
            asyncio.run((fuzzed.meeting if which % 3 == 1 else fuzzed.words)(proved, said))

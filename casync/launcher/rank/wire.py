"""The messages of a rank and casyncrun to each other, over one TCP connection.

Both sides use it, so it imports the standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "HEADER_BYTES",
    "JOB_SECRET",
    "LAUNCHER",
    "PROOF_BYTES",
    "REPORT_FD",
    "RESULT_FD",
    "TOKEN",
    "Unpacker",
    "hello_proof",
    "is_silent",
    "job_secret",
    "keep_alive",
    "pack",
]

LAUNCHER = "CASYNC_LAUNCHER"  # "address,address,...:port" of casyncrun
TOKEN = "CASYNC_LAUNCHER_TOKEN"  # known to the ranks of this job alone; it never travels over the connection
REPORT_FD = "CASYNC_REPORT_FD"  # where the command may write lines for casyncrun, see casync.rendezvous.launcher_pipe
RESULT_FD = "CASYNC_RESULT_FD"  # the file into which casync.launcher.task writes what its function returned

JOB_SECRET = ("CASYNC_JOB_SECRET", "CASYNC_JOB_SECRET_FILE")  # see casync.rendezvous.secret
PROOF_BYTES = hashlib.sha256().digest_size

_HEADER = struct.Struct("!BI")
HEADER_BYTES = _HEADER.size
_LONGEST = 1 << 26  # bytes of a frame
_LAST_ACK_AT, _RETRANSMITS_AT, _PROBES_AT = 56, 2, 3  # in struct tcp_info (linux/tcp.h)
_SILENT_MS, _SILENT_TRIES = 30_000, 5


def pack(kind: str, payload: bytes | Mapping[str, Any] = b"") -> bytes:
    """One frame: a letter for its kind, a length, and bytes or JSON.

    From a rank: H hello, O stdout, E stderr, R report line, T stopped or continued, V a piece of its result, X exit.
    To a rank: W welcome, F a piece of what the command finds on its stdin, G go, S signal, K kill.
    """
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return _HEADER.pack(ord(kind), len(body)) + body


def hello_proof(token: str) -> bytes:
    """Return the beginning of a hello. Only who knows the token can say it, and the token does not follow from it."""
    return hmac.new(token.encode(), b"a rank greets casyncrun", hashlib.sha256).digest()


def job_secret(token: str) -> str:
    """Return the secret that ranks which meet without MPI prove to each other that they know."""
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

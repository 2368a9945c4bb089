"""How a rank gets a connection to casyncrun over which it is welcome."""

from __future__ import annotations

import os
import socket
import time

from casync.launcher.rank.wire import HEADER_BYTES, Unpacker, keep_alive

__all__ = ["join"]

_CONNECT_SECONDS = 5.0
_WELCOME_SECONDS = 10.0  # how long casyncrun may take to answer a greeting
_JOIN_SECONDS = 60.0  # how long a rank tries to be let in


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


def join(where: str, hello: bytes) -> tuple[socket.socket, Unpacker]:
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
            while data := connection.recv(HEADER_BYTES):  # no more than the welcome, which has no body
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

"""One TCP stream between two hosts: how many bits per second arrive. Run by path, inside the namespaces.

stream.py receive PORT SKIP     prints bits/s after the connection closed; the first SKIP seconds do not count
stream.py send ADDRESS PORT SECONDS CONGESTION   by this congestion control; "": that of the system
"""

from __future__ import annotations

import socket
import sys
import time

__all__ = ["main", "receive", "send"]

_CHUNK = 1 << 20
_ACCEPT_SECONDS = 5.0


def receive(port: int, skip: float) -> float:
    """Accept one connection, count what arrives after `skip` seconds until it closes; bits per second."""
    buffer = memoryview(bytearray(_CHUNK))
    with socket.create_server(("", port)) as server:
        server.settimeout(_ACCEPT_SECONDS)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        link, _ = server.accept()
    with link:
        link.settimeout(_ACCEPT_SECONDS)
        # Left out: slow start, and the burst that the shaper lets pass at once.
        until = time.monotonic() + skip
        while time.monotonic() < until and link.recv_into(buffer):
            pass
        began = last = _emptied(link, buffer)
        total = 0
        while size := link.recv_into(buffer):
            total += size
            last = time.monotonic()
    return 8.0 * total / (last - began) if last > began else 0.0


def _emptied(link: socket.socket, buffer: memoryview) -> float:
    """Read what has arrived already; a time at which nothing more of it was left. A receiver that the processor left
    waiting would otherwise count bytes that came before its first second, and see more than the link carries.
    """
    link.setblocking(False)
    try:
        while True:
            at = time.monotonic()
            try:
                if not link.recv_into(buffer):
                    return at
            except BlockingIOError:
                return at
    finally:
        link.settimeout(_ACCEPT_SECONDS)


def send(address: str, port: int, seconds: float, congestion: str) -> None:
    """Send as fast as the link takes it, for `seconds`."""
    data = bytes(_CHUNK)
    with socket.create_connection((address, port), timeout=_ACCEPT_SECONDS) as link:
        if congestion:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            link.sendall(data)


def main(argv: list[str]) -> int:
    """The two commands of the module's docstring."""
    if argv[:1] == ["receive"]:
        sys.stdout.write(f"{receive(int(argv[1]), float(argv[2])):.0f}\n")
        return 0
    send(argv[1], int(argv[2]), float(argv[3]), argv[4])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Ports for tests."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row of this host that nobody uses now.

    They are drawn below those that the kernel gives to connections (32768 to 60999 on Linux), so that no other
    connection of this host takes one in between.
    """
    while True:
        first = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("", port))
            return first

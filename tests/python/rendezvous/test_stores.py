"""Each store keeps the first word at a key, and has whoever waits for all of several."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casync.errors import CasyncError, InvalidArgumentError
from casync.stores import FileStore, SocketStore, Store, store_of
from support.ports import free_port

Open = Callable[[bool], Store]


@pytest.fixture(params=["file", "socket", "torch"])
def stores(request: Any, tmp_path: Path) -> tuple[Store, Store]:
    """As two processes have them."""
    if request.param == "file":
        return FileStore(tmp_path / "meet"), FileStore(tmp_path / "meet")
    port = free_port()
    if request.param == "socket":
        return SocketStore("127.0.0.1", port, True, 5.0), SocketStore("127.0.0.1", port, False, 5.0)
    distributed = pytest.importorskip("torch").distributed
    return (
        store_of(distributed.TCPStore("127.0.0.1", port, 2, True, wait_for_workers=False)),
        store_of(distributed.TCPStore("127.0.0.1", port, 2, False, wait_for_workers=False)),
    )


def test_the_first_word_stays(stores: tuple[Store, Store]) -> None:
    one, other = stores
    assert one.put("a/b c", b'{"x": 1}') == b'{"x": 1}'
    assert other.put("a/b c", b"late") == b'{"x": 1}'
    assert other.wait(["a/b c"], 5.0) == {"a/b c": b'{"x": 1}'}


def test_who_waits_gets_all_as_soon_as_they_are_there(stores: tuple[Store, Store]) -> None:
    one, other = stores
    timer = threading.Timer(0.2, other.put, ("second", b"2"))
    timer.start()
    one.put("first", b"1")
    begun = time.monotonic()
    assert one.wait(["first", "second"], 30.0) == {"first": b"1", "second": b"2"}
    assert time.monotonic() - begun < 10
    timer.join()


def test_what_is_missing_when_the_time_is_over(stores: tuple[Store, Store]) -> None:
    stores[0].put("first", b"1")
    assert stores[1].wait(["first", "second"], 0.2) == {"first": b"1"}


def test_a_child_does_not_hold_the_port(tmp_path: Path) -> None:
    """Of a process that served it and has gone."""
    port, ended = free_port(), tmp_path / "ended"
    program = f"""
        import os, pathlib, time
        from casync.stores import SocketStore
        SocketStore("127.0.0.1", {port}, True, 5.0)
        if os.fork() == 0:
            while not pathlib.Path({str(ended)!r}).exists():
                time.sleep(0.02)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, check=True)
    try:
        with socket.socket() as later:
            later.bind(("127.0.0.1", port))
            later.listen()
    finally:
        ended.touch()


def test_nobody_at_the_port_is_named_in_time() -> None:
    port = free_port()
    begun = time.monotonic()
    with pytest.raises(CasyncError, match=f"nobody answers at 127.0.0.1 port {port}"):
        SocketStore("127.0.0.1", port, False, 0.5).put("a", b"1")
    assert time.monotonic() - begun < 5


def test_a_port_that_is_taken_and_a_name_that_does_not_resolve() -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        with pytest.raises(CasyncError, match=f"MASTER_PORT={port}: Address already in use"):
            SocketStore("127.0.0.1", port, True, 1.0)
    with pytest.raises(CasyncError, match="MASTER_ADDR=no.such.host.invalid cannot be resolved"):
        SocketStore("no.such.host.invalid", 1, False, 1.0)


def test_strangers_at_the_port_do_no_harm() -> None:
    port = free_port()
    store = SocketStore("127.0.0.1", port, True, 5.0)
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"put": 3}\n', b"\xff\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(nonsense)
    assert store.put("a", b"1") == b"1"


def test_what_is_no_store() -> None:
    with pytest.raises(InvalidArgumentError, match="store=3"):
        store_of(3)

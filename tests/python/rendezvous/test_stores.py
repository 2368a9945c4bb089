"""Each store keeps the first word at a key, and has whoever waits for all of several."""

from __future__ import annotations

import contextlib
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
from casync.rendezvous.socket_store import speaks
from casync.rendezvous.stores import FileStore, SocketStore, Store, store_of
from casync.transport.tcp import session_name
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
        from casync.rendezvous.stores import SocketStore
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


def full(place: socket.socket) -> list[socket.socket]:
    """Connections for which a listener of none has no room: to whoever calls next it is as if its SYN were lost."""
    calls = []
    for _ in range(4):
        calls.append(socket.socket())
        calls[-1].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            calls[-1].connect(place.getsockname())
    return calls


def test_a_packet_that_is_lost_ends_no_start() -> None:
    """Linux sends a lost SYN again after a second."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for each in full(listener):
            stack.enter_context(each)
        store = SocketStore("127.0.0.1", listener.getsockname()[1], False, 60.0)
        for seconds in (0.05, 1.0, 0.05, 1.2):
            begun = time.monotonic()
            assert store.wait(["a"], seconds) == {}
            assert time.monotonic() - begun < seconds + 5


def test_a_store_that_comes_late_is_found_by_who_has_waited() -> None:
    port = free_port()
    store = SocketStore("127.0.0.1", port, False, 60.0)
    assert store.wait(["a"], 0.3) == {}
    SocketStore("127.0.0.1", port, True, 60.0).put("a", b"1")
    assert store.wait(["a"], 20.0) == {"a": b"1"}


def test_a_key_may_be_longer_than_a_files_name(stores: tuple[Store, Store]) -> None:
    keys = [f"session/{end} of {','.join(map(str, range(300)))}, 1/0" for end in "ab"]
    for key in keys:
        stores[0].put(key, key.encode())
    assert stores[1].wait(keys, 5.0) == {key: key.encode() for key in keys}


def test_the_name_of_a_session_is_short_for_any_number_of_ranks() -> None:
    names = {session_name(tag, range(size)) for tag in (0, 1) for size in (2, 3, 4000)}
    assert len(names) == 6 and max(map(len, names)) < 100


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CasyncError, match="store='.*file/meet': the ranks cannot meet in this folder: Not a directory"):
        FileStore(tmp_path / "file" / "meet")


SECRET = b"0123456789abcdef"


def test_who_does_not_know_the_secret_reads_and_writes_nothing() -> None:
    port = free_port()
    store = SocketStore("127.0.0.1", port, True, 5.0, secret=SECRET)
    store.put("secret", b"1")
    for other in (b"", b"another secret of 16"):
        with pytest.raises(CasyncError, match="does not know this job's secret"):
            SocketStore("127.0.0.1", port, False, 0.5, secret=other).put("secret", b"2")
    assert SocketStore("127.0.0.1", port, False, 5.0, secret=SECRET).put("secret", b"3") == b"1"


def test_what_has_proved_nothing_cannot_hold_the_places_of_ranks() -> None:
    port = free_port()
    SocketStore("127.0.0.1", port, True, 20.0, ranks=2, secret=SECRET).put("a", b"1")
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(50)]
        held[-1].sendall(b"CaSync02" + b"x" * 10_000)  # more than anybody may say
        assert SocketStore("127.0.0.1", port, False, 20.0, secret=SECRET).wait(["a"], 20.0) == {"a": b"1"}
        gone = 0
        for each in held:
            each.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                try:
                    gone += each.recv(1000)[-1:] == b""
                except ConnectionResetError:
                    gone += 1
        assert gone >= 50 - 4


def test_a_start_in_a_flood_of_connections() -> None:
    port, over = free_port(), threading.Event()

    def flood() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                pass
            time.sleep(0.001)

    store = SocketStore("127.0.0.1", port, True, 30.0, ranks=4, secret=SECRET)
    stranger = threading.Thread(target=flood)
    stranger.start()
    try:
        for rank in range(4):
            other = SocketStore("127.0.0.1", port, False, 30.0, ranks=4, secret=SECRET)
            assert other.put(f"rank/{rank}", b"here") == b"here"
        assert len(store.wait([f"rank/{rank}" for rank in range(4)], 30.0)) == 4
    finally:
        over.set()
        stranger.join()


@pytest.mark.parametrize("serves", ["casync", "torch"])
def test_whose_store_listens_there(serves: str) -> None:
    port = free_port()
    if serves == "torch":
        distributed = pytest.importorskip("torch").distributed
        kept: Any = distributed.TCPStore("127.0.0.1", port, 2, True, wait_for_workers=False)
    else:
        kept = SocketStore("127.0.0.1", port, True, 5.0, secret=SECRET)
    assert speaks("127.0.0.1", port, 10.0) == serves
    del kept


def test_a_server_of_something_else_is_neither() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(CasyncError, match="neither CaSync's store nor torch's"):
            speaks("127.0.0.1", server.getsockname()[1], 1.0)
        server.shutdown(socket.SHUT_RDWR)


def test_names_that_can_be_none() -> None:
    for name in ("a" * 64 + ".example", "host..example", "x" * 256):
        with pytest.raises(CasyncError, match=f"MASTER_ADDR={name} cannot be resolved"):
            SocketStore(name, 1, False, 1.0)


def test_what_is_no_store() -> None:
    with pytest.raises(InvalidArgumentError, match="store=3"):
        store_of(3)

"""Where processes that know an address, or a folder, leave words for each other: a store of keys.

Who connects needs one operation, in which everybody leaves a word and reads those of all. torch's own stores serve
where torch is, so that a script's `init_process_group` and `hvd.init()` share one port; without torch, one here does.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from casync.errors import CasyncError, InvalidArgumentError
from casync.rendezvous import Started

__all__ = ["FileStore", "SocketStore", "Store", "TorchStore", "open_store", "store_of"]

_LOOK_SECONDS = 0.01
_DIAL_SECONDS = 0.1


class Store(Protocol):
    """Words by key. A key is written once: who comes first wins."""

    def put(self, key: str, word: bytes) -> bytes:
        """Leave `word` at `key` if there is none; returns what is there then."""
        ...

    def wait(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        """The words at `keys`, as soon as all are there; those that are there when the time is over."""
        ...


# --- torch ------------------------------------------------------------------------------------------------------------


class TorchStore:
    """One of `torch.distributed`'s stores."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, key: str, word: bytes) -> bytes:
        return bytes(self._store.compare_set(key, "", word.decode()))

    def wait(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        with contextlib.suppress(RuntimeError):  # the time is over
            self._store.wait(list(keys), timedelta(seconds=timeout_s))
        there = [key for key in keys if self._store.check([key])]
        return {key: bytes(self._store.get(key)) for key in there}


def _torch_store(started: Started, timeout_s: float) -> Store:
    """That of `torch.distributed` if it is initialised, else one at the same place as its own would be."""
    distributed = importlib.import_module("torch.distributed")
    if distributed.is_available() and distributed.is_initialized():
        return TorchStore(distributed.distributed_c10d._get_default_store())
    return TorchStore(
        distributed.TCPStore(
            started.address,
            started.port,
            started.size,
            started.rank == 0 and not started.is_served,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,  # so that init_process_group shares it
        )
    )


# --- a folder ---------------------------------------------------------------------------------------------------------


class FileStore:
    """A folder that all processes see: one per job, since it keeps the words of the last one."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, word: bytes) -> bytes:
        path = self._path(key)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            file.write(word)
        try:
            os.link(file.name, path)  # whole, or not at all
        except FileExistsError:
            return path.read_bytes()
        finally:
            os.unlink(file.name)
        return word

    def wait(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        until = time.monotonic() + timeout_s
        while True:
            there = {key: self._path(key).read_bytes() for key in keys if self._path(key).exists()}
            if len(there) == len(keys) or time.monotonic() >= until:
                return there
            time.sleep(_LOOK_SECONDS)

    def _path(self, key: str) -> Path:
        return self._folder / base64.urlsafe_b64encode(key.encode()).decode()


# --- a port -----------------------------------------------------------------------------------------------------------


class _Server(socketserver.ThreadingTCPServer):
    """Holds the words. A request is a line of JSON on a connection of its own, and so is the answer."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.address_family = family
        self.words: dict[str, bytes] = {}
        self.changed = threading.Condition()
        super().__init__(address, _Request)

    def answer(self, asked: dict[str, Any]) -> dict[str, str]:
        with self.changed:
            if "put" in asked:
                word = self.words.setdefault(asked["put"], base64.b64decode(asked["word"]))
                self.changed.notify_all()
                found = {asked["put"]: word}
            else:
                keys = asked["wait"]
                self.changed.wait_for(lambda: all(key in self.words for key in keys), asked["timeout_s"])
                found = {key: self.words[key] for key in keys if key in self.words}
        return {key: base64.b64encode(word).decode() for key, word in found.items()}


class _Request(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a stranger's
            assert isinstance(self.server, _Server)
            answer = self.server.answer(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class SocketStore:
    """The words are with rank 0, which listens at the address as long as its process lives."""

    def __init__(self, address: str, port: int, serves: bool, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        try:
            family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise CasyncError(f"MASTER_ADDR={address} cannot be resolved: {error.strerror or error}") from None
        self._place = str(place[0]), int(place[1])
        if serves:
            try:
                server = _Server(family, ("", port))
            except OSError as error:
                raise CasyncError(
                    f"rank 0 cannot listen at MASTER_PORT={port}: {error.strerror}. Another job may use it: choose "
                    "another port"
                ) from None
            os.register_at_fork(after_in_child=server.socket.close)  # or the port would be taken as long as it lives
            threading.Thread(target=server.serve_forever, name="casync-store", daemon=True).start()

    def put(self, key: str, word: bytes) -> bytes:
        return self._ask({"put": key, "word": base64.b64encode(word).decode()}, self._timeout_s)[key]

    def wait(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        return self._ask({"wait": list(keys), "timeout_s": timeout_s}, timeout_s)

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, bytes]:
        """Once rank 0 is there."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                with socket.create_connection(self._place, timeout=max(timeout_s, 1.0)) as connection:
                    connection.settimeout(timeout_s + 5)
                    connection.sendall(json.dumps(request).encode() + b"\n")
                    answer = json.loads(connection.makefile().readline())
                return {key: base64.b64decode(word) for key, word in answer.items()}
            except (OSError, ValueError) as error:
                if time.monotonic() >= until:
                    raise CasyncError(
                        f"nobody answers at {self._place[0]} port {self._place[1]} (MASTER_ADDR, MASTER_PORT), where "
                        f"rank 0 should be, for {timeout_s:g} s: {error}. Is rank 0 running, and may it be reached?"
                    ) from None
            time.sleep(_DIAL_SECONDS)


# --- which ------------------------------------------------------------------------------------------------------------


def open_store(started: Started, timeout_s: float) -> Store:
    """That of the place at which the launcher has processes meet. Raises `CasyncError` if nobody is there in time."""
    if started.is_served or not started.address or "torch" in sys.modules:
        try:
            return _torch_store(started, timeout_s)
        except ImportError:
            raise CasyncError(
                f"{started.reason}: its store can be read by torch alone, which is not installed"
            ) from None
        except (RuntimeError, ValueError) as error:
            raise CasyncError(
                f"rank {started.rank} cannot meet the others at {started.address} port {started.port} (MASTER_ADDR, "
                f"MASTER_PORT): {error}. Does the name resolve, is rank 0 running there, and does no other job use the "
                "port?"
            ) from None
    return SocketStore(started.address, started.port, started.rank == 0, timeout_s)


def store_of(given: Any) -> Store:
    """What `init(store=...)` was given: a folder, one of torch's stores, or anything with `put` and `wait`."""
    if isinstance(given, (str, os.PathLike)):
        return FileStore(given)
    if hasattr(given, "compare_set"):
        return TorchStore(given)
    if hasattr(given, "put") and hasattr(given, "wait"):
        store: Store = given
        return store
    raise InvalidArgumentError(f"store={given!r}: give a folder that all processes see, or a torch.distributed.Store")

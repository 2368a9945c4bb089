"""Stores of keys, where processes that know an address, or a folder, leave words for each other.

To connect takes one operation, in which everybody leaves a word and reads those of all. torch's own stores serve
where torch is, so that a script's `init_process_group` and `hvd.init()` share one port; without torch, one here does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from casync.errors import InvalidArgumentError, StartError
from casync.rendezvous.choose import Started
from casync.rendezvous.socket_store import SocketStore, speaks

__all__ = ["FileStore", "SocketStore", "Store", "TorchStore", "open_store", "store_of"]

_LOOK_SECONDS = 0.01
_LEAST_SECONDS = 0.1


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
        if timeout_s >= _LEAST_SECONDS:  # torch prints that a time is over
            with contextlib.suppress(RuntimeError):
                self._store.wait(list(keys), timedelta(seconds=timeout_s))
        there = [key for key in keys if self._store.check([key])]
        return {key: bytes(self._store.get(key)) for key in there}


def _torch_store(started: Started, timeout_s: float) -> Store:
    """Return the store of `torch.distributed` if it is initialised; else open one at the place where that would be."""
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
        with _named(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, word: bytes) -> bytes:
        path = self._path(key)
        with _named(self._folder):
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
        missing = list(keys)
        there: dict[str, bytes] = {}
        while True:
            # One key that is not there is enough to know that not all are: many ranks look at one folder.
            while missing and self._read(missing[-1], there):
                missing.pop()
            if not missing:
                return there
            if time.monotonic() >= until:
                for key in missing:
                    self._read(key, there)
                return there
            time.sleep(_LOOK_SECONDS)

    def _read(self, key: str, there: dict[str, bytes]) -> bool:
        with _named(self._folder):
            try:
                there[key] = self._path(key).read_bytes()
            except FileNotFoundError:
                return False
        return True

    def _path(self, key: str) -> Path:
        # A key names every rank of its session: that may be longer than a file's name.
        return self._folder / hashlib.blake2s(key.encode()).hexdigest()


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(f"store={str(folder)!r}: the ranks cannot meet in this folder: {error.strerror}") from None


# --- which ------------------------------------------------------------------------------------------------------------


def open_store(started: Started, timeout_s: float, secret: bytes = b"") -> Store:
    """Open the store where the launcher has processes meet. Raises `StartError` if nobody is there in time.

    Rank 0 has torch's where it has torch, so that a later `init_process_group` shares its port. The others have what
    rank 0 has, whether or not they have imported torch themselves.
    """
    if not _is_torchs(started, timeout_s):
        serves = started.rank == 0
        return SocketStore(started.address, started.port, serves, timeout_s, ranks=started.size, secret=secret)
    try:
        return _torch_store(started, timeout_s)
    except ImportError:
        raise StartError(f"{started.reason}: its store can be read by torch alone, which is not installed") from None
    except (RuntimeError, ValueError) as error:
        raise StartError(
            f"rank {started.rank} cannot meet the others at {started.address} port {started.port} (MASTER_ADDR, "
            f"MASTER_PORT): {error}. Does the name resolve, is rank 0 running there, and does no other job use the "
            "port?"
        ) from None


def _is_torchs(started: Started, timeout_s: float) -> bool:
    if started.is_served or not started.address or _is_initialized():
        return True
    if started.rank == 0:
        return "torch" in sys.modules
    return speaks(started.address, started.port, timeout_s) == "torch"


def _is_initialized() -> bool:
    """Whether torch's own store is there already, for all ranks."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def store_of(given: Any) -> Store:
    """Return the store that `init(store=...)` means: a folder, one of torch's, or anything with `put` and `wait`."""
    if isinstance(given, (str, os.PathLike)):
        return FileStore(given)
    if hasattr(given, "compare_set"):
        return TorchStore(given)
    if hasattr(given, "put") and hasattr(given, "wait"):
        store: Store = given
        return store
    raise InvalidArgumentError(f"store={given!r}: give a folder that all processes see, or a torch.distributed.Store")

"""The processes that were started together, and how this one reaches the others."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from casync.config import Config
from casync.rendezvous import choose

__all__ = ["Job", "join"]


class Job(Protocol):
    """What a session needs of it. MPI is one of these; so are sockets, and a process that is alone."""

    @property
    def name(self) -> str:
        """Of the way by which its processes reach each other: "alone", "mpi" or "tcp"."""
        ...

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    @property
    def hosts(self) -> Sequence[Hashable]:
        """Per process a value that is equal for those of one host."""
        ...

    def connect(self, tag: int, ranks: Sequence[int], config: Config) -> Any:
        """A transport over the processes `ranks`, as the capsule that the core takes; None: this one is alone.
        Collective over them.
        """
        ...

    def note_failure(self) -> None:
        """A session ended by an error, so that others may never leave."""
        ...


class _Alone:
    name = "alone"
    rank = 0
    hosts = (0,)

    def connect(self, tag: int, ranks: Sequence[int], config: Config) -> None:
        return None

    def note_failure(self) -> None:
        pass


def join(environ: Mapping[str, str], config: Config, store: Any = None) -> Job:
    """The job that this process is one of; collective over its processes the first time.

    `store` is where they meet, if the program brings one (`init(store=...)`). Raises `CasyncError` if they cannot find
    each other, with what to do.
    """
    started = choose(environ, config.transport, has_store=store is not None, group=_process_group())
    if started.kind == "alone":
        return _Alone()
    if started.kind == "mpi":
        from casync import mpi

        return mpi.MpiJob.join(environ, config)
    from casync import tcp

    return tcp.join(started, config, store)


def _process_group() -> tuple[int, int] | None:
    """This process's rank in `torch.distributed`, and how many there are; None if it is not in use."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()

"""The processes that were started together, and how this one reaches the others."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from casync.config.settings import Config
from casync.errors import CasyncError, StartError
from casync.rendezvous.choose import Started, choose
from casync.transport import children

__all__ = ["Job", "join", "leave"]

_OF_MPI = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"),
    *("PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables that tell one process of MPI from all others. MPI itself sets further ones while it starts."""


class Job(Protocol):
    """A job's processes, as a session needs them. MPI is one of these; so are sockets, and a process that is alone."""

    @property
    def name(self) -> str:
        """The name of the way by which its processes reach each other: "alone", "mpi" or "tcp"."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    @property
    def hosts(self) -> Sequence[Hashable]:
        """A value for each process, which is equal for those of one host."""
        ...

    def connect(self, tag: int, ranks: Sequence[int], config: Config) -> Any:
        """Return a transport over the processes `ranks`, as the capsule that the core takes; None: this one is alone.
        Collective over them.
        """
        ...

    def note_failure(self) -> None:
        """Note that a session ended by an error, so that others may never leave."""
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

    `store` is where they meet, if the program brings one (`init(store=...)`). Raises `StartError` if they cannot find
    each other, with what to do, and in a child process of a rank that would be that rank a second time.
    """
    places = _places_of(environ, config, store)
    free = [started for place, started in places.items() if children.who_has(environ, place) is None]
    if not places:
        return _Alone()
    if not free:
        place = next(iter(places))
        raise StartError(
            f"init() was called in a child of a rank: process {os.getpid()} has its place from the environment of "
            f"process {children.who_has(environ, place)}, which is that rank. A rank is one process: "
            "its children, such as the workers of a DataLoader, have no part in its session. Call init() under `if "
            "__name__ == '__main__':`. A child that is to be a world of its own has CASYNC_SIZE=1 in its environment"
        )
    job = _joined(free[0], environ, config, store)
    children.mark(os.environ, places)
    return job


def leave(job: Job) -> None:
    """The session over all of the job's processes is closed. With MPI a process keeps its place until it ends."""
    if job.name != "mpi":
        children.erase(os.environ)


def _joined(started: Started, environ: Mapping[str, str], config: Config, store: Any) -> Job:
    if started.kind == "mpi":
        from casync.transport import mpi

        return mpi.MpiJob.join(environ, config)
    from casync.transport import tcp

    return tcp.join(started, config, store)


def _places_of(environ: Mapping[str, str], config: Config, store: Any) -> dict[str, Started]:
    """Return what this process may join, the best first, by a key that no other process has. None: it is alone.

    A launcher that an MPI rank has started, such as torchrun, leaves MPI's variables to its own ranks.
    """
    has_store, group = store is not None, _process_group()
    first = choose(environ, config.transport, has_store=has_store, group=group)
    found = {} if first.kind == "alone" else {_place_of(first, environ, store): first}
    if first.kind == "mpi":
        rest = {name: value for name, value in environ.items() if name not in _OF_MPI}
        with contextlib.suppress(CasyncError):
            other = choose(rest, "auto", has_store=has_store, group=group)
            if other.kind == "tcp":
                found[_place_of(other, rest, store)] = other
    return found


def _place_of(started: Started, environ: Mapping[str, str], store: Any) -> str:
    if started.kind == "mpi":
        known = [f"{name}={environ.get(name, '')}" for name in _OF_MPI]
    else:
        # A store that is an object is another one in another process.
        folder = os.path.abspath(store) if isinstance(store, (str, os.PathLike)) else f"{id(store)} {os.getpid()}"
        known = [repr(started), folder if store is not None else ""]
    return hashlib.blake2s("\n".join(known).encode()).hexdigest()


def _process_group() -> tuple[int, int] | None:
    """This process's rank in `torch.distributed`, and how many there are; None if it is not in use."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()

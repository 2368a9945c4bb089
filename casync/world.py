"""Who the ranks of a world are, and whether this process is one of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casync.config import Config
from casync.errors import CasyncError

__all__ = ["World", "everyone", "started_by_mpi"]


@dataclass(frozen=True)
class World:
    """Who the ranks are and which share a host. `host_of` holds a host index per rank, counted from 0 by first
    appearance.
    """

    rank: int
    host_of: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, hosts: Sequence[Any]) -> World:
        """From one equal-if-same-host value per rank."""
        index: dict[Any, int] = {}
        return cls(rank, tuple(index.setdefault(host, len(index)) for host in hosts))

    @property
    def size(self) -> int:
        return len(self.host_of)

    @property
    def local_rank(self) -> int:
        """Position among the ranks of this host."""
        return self._local_rank_of(self.rank)

    @property
    def local_size(self) -> int:
        return self.host_of.count(self.host_of[self.rank])

    @property
    def cross_rank(self) -> int:
        """Position among the ranks that have this local rank, one per host that is large enough."""
        return self._across().index(self.rank)

    @property
    def cross_size(self) -> int:
        return len(self._across())

    @property
    def is_homogeneous(self) -> bool:
        """Whether all hosts have equally many ranks."""
        return len({self.host_of.count(host) for host in set(self.host_of)}) == 1

    def _local_rank_of(self, rank: int) -> int:
        return self.host_of[:rank].count(self.host_of[rank])

    def _across(self) -> list[int]:
        local_rank = self.local_rank
        return [rank for rank in range(self.size) if self._local_rank_of(rank) == local_rank]


def everyone(environ: Mapping[str, str], config: Config) -> tuple[int, ...]:
    """The ranks of MPI's world, in which the first call must be made on all of them; (0,) without MPI."""
    if not started_by_mpi(environ):
        return (0,)
    from casync import mpi

    return tuple(range(mpi.join(config).world_size()))


def started_by_mpi(environ: Mapping[str, str]) -> bool:
    """Whether MPI says that this process is one of several; False for a world of one.

    Raises `CasyncError`, with the command to use, if this process was clearly meant to be one of several by a launcher
    that is not MPI's: N worlds of one would train N models without a word.
    """

    def number(name: str) -> int:
        text = environ.get(name, "")
        return int(text) if text.isdigit() else 0

    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if number(name) > 0:
            return number(name) > 1
    if "PMIX_RANK" in environ:
        return True
    if number("CASYNC_SIZE") == 1:
        return False
    for launcher, size, evidence in (
        ("casyncrun or horovodrun", "CASYNC_SIZE", "CASYNC_SIZE"),
        ("casyncrun or horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
        ("torchrun", "WORLD_SIZE", "RANK"),
        ("srun", "SLURM_NTASKS", "SLURM_PROCID"),
    ):
        if number(size) > 1 and evidence in environ:
            remedy = f"start them with `casyncrun -np {number(size)} python ...`"
            if launcher == "srun":
                remedy += " inside the allocation, or with `srun --mpi=pmix`"
            raise CasyncError(
                f"{size}={number(size)} says that this is one of {number(size)} processes started by {launcher}, but "
                f"MPI does not know of them, so each would be a world of its own: {remedy}. If this process is meant "
                f"to be alone, set CASYNC_SIZE=1"
            )
    return False

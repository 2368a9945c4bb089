"""The ranks of a world, and their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["World"]


@dataclass(frozen=True)
class World:
    """The ranks, and which of them share a host. `host_of` holds a host index per rank, counted from 0 by first
    appearance.
    """

    rank: int
    host_of: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, hosts: Sequence[Any]) -> World:
        """Make a world from one value per rank, which is equal for ranks of the same host."""
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

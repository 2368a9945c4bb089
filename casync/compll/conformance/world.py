"""Virtual ranks that aggregate a gradient as the routes do (casync_core/src/routes), one call after the other.

- direct: every rank encodes, every rank merges all payloads in rank order
- parameter server: partition p is owned by rank p mod N: the others encode, the owner merges their payloads and its own
  contribution in rank order, encodes the mean, and all decode that
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from casync.compll.conformance.cases import partitions
from casync.compll.conformance.contract import Codec, Source
from casync.compll.conformance.elements import FLOAT32
from casync.compll.conformance.rank import NAME, Range, Rank

__all__ = ["World", "routes"]


def routes(codec: Codec) -> tuple[str, ...]:
    """Return the routes that the runtime has for the codec."""
    return ("direct",) if codec.info.rounds[0] == "gather" else ("direct", "parameter server")


class World:
    """`size` ranks and one gradient. `step` is the runtime's count of synchronisations, from `first` on."""

    def __init__(
        self,
        codec: Codec,
        shape: tuple[int, int],
        size: int = 1,
        first: int = 0,
        route: str = "direct",
        cut: int = 1,
        dtype: int = FLOAT32,
        name: int = NAME,
        momentum: float = 0.0,
    ) -> None:
        self.codec, self.info, self.route, self.size = codec, codec.info, route, size
        self.ranks = [Rank(codec, shape, rank, size, dtype, name, momentum) for rank in range(size)]
        self.partitions = partitions(codec, shape, cut)
        self.number = first
        self.agreed = codec.agreed() == 0
        self.sent: list[np.ndarray] = []  # the payloads of the last step, in the order of their making

    def step(self, gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each rank's average."""
        self.agree(gradients)
        self.sent = []
        parts = []
        for index, part in enumerate(self.partitions):
            owner = None if self.route == "direct" else index % self.size
            if owner is None or self.info.merges_payloads:
                parts.append(self._rounds(part, gradients, owner))
            else:
                parts.append(self._served(part, gradients, owner))
        self.number += 1
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def agree(self, gradients: Sequence[np.ndarray]) -> None:
        """Do what comes before a gradient is first encoded: the ranks agree. `step` does it by itself."""
        if self.agreed:
            return
        whole = (0, self.ranks[0].size)
        mean = np.zeros(self.codec.agreed(), np.float32)
        for rank, gradient in zip(self.ranks, gradients, strict=True):
            values = np.zeros_like(mean)
            self.codec.propose(rank.segment(whole, [rank.raw(gradient, whole)], self.number), values)
            mean += values
        mean /= np.float32(self.size)
        self.agreed = bool(np.isfinite(mean).all())
        for rank in self.ranks if self.agreed else ():
            self.codec.agree(rank.segment(whole, [], self.number), mean)

    def _before(self) -> dict[str, float]:
        """Return the factor of what is encoded first."""
        return {"pre": float(np.float32(1) / np.float32(self.size))} if self.info.prescaled else {}

    def _final(self) -> dict[str, float]:
        """Factor of the complete sum."""
        taken = self.info.prescaled or self.info.merges_payloads
        return {} if taken else {"mid": float(np.float32(1) / np.float32(self.size))}

    def _rounds(self, part: Range, gradients: Sequence[np.ndarray], owner: int | None) -> list[np.ndarray]:
        """Run the rounds in which payloads are merged: by everybody, or by `owner` for all."""
        previous: list[np.ndarray | None] = [None] * self.size
        last = len(self.info.rounds) - 1
        for round in range(last):
            payloads = self._encode(part, gradients, round, previous)
            mergers = self.ranks if owner is None else [self.ranks[owner]]
            merged: list[np.ndarray | None] = [
                rank.merge(part, payloads, self.number, round=round, previous=previous[rank.rank]) for rank in mergers
            ]
            previous = merged if owner is None else merged * self.size
        payloads = self._encode(part, gradients, last, previous)
        if owner is not None:
            merger, before = self.ranks[owner], previous[owner]
            payloads = [Source(merger.merge(part, payloads, self.number, round=last, previous=before))]
        return [
            rank.deliver(part, payloads, self.number, round=last, previous=before, **self._final())
            for rank, before in zip(self.ranks, previous, strict=True)
        ]

    def _encode(
        self, part: Range, gradients: Sequence[np.ndarray], round: int, previous: Sequence[np.ndarray | None]
    ) -> list[Source]:
        payloads = [
            rank.encode(gradient, part, self.number, round=round, previous=before, feedback=True, **self._before())
            for rank, gradient, before in zip(self.ranks, gradients, previous, strict=True)
        ]
        self.sent += payloads
        return [Source(payload) for payload in payloads]

    def _served(self, part: Range, gradients: Sequence[np.ndarray], owner: int) -> list[np.ndarray]:
        """One round: the owner's own contribution is never encoded."""
        sources = [
            rank.raw(gradient, part)
            if rank.rank == owner
            else Source(rank.encode(gradient, part, self.number, feedback=True, **self._before()))
            for rank, gradient in zip(self.ranks, gradients, strict=True)
        ]
        factors = {**self._before(), **self._final()}
        payload, out = self.ranks[owner].own(part, sources, self.number, feedback=True, **factors)
        self.sent += [source.data for source in sources if not source.raw] + [payload]
        return [
            out if rank.rank == owner else rank.deliver(part, [Source(payload)], self.number) for rank in self.ranks
        ]

"""One gradient on its way through the rounds of a codec, on a rank that is alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from casync.compll.conformance.cases import Case
from casync.compll.conformance.contract import Codec, Segment, Source
from casync.compll.conformance.rank import Rank, delivered, written
from casync.compll.conformance.world import World

__all__ = ["Passage", "lone_rank"]


def lone_rank(codec: Codec, case: Case, **terms: Any) -> Rank:
    """About to encode the case's gradient for the first time."""
    world = World(codec, case.shape, first=case.step, dtype=case.dtype, **terms)
    world.agree([case.elements()])
    return world.ranks[0]


class Passage:
    """`rest`: further fields of the segments that encode."""

    def __init__(self, rank: Rank, gradient: np.ndarray, step: int, **rest: Any) -> None:
        self.rank, self.gradient, self.step, self.rest = rank, gradient, step, rest
        self.part = (0, rank.size)
        self.payloads: list[np.ndarray] = []
        self.previous: np.ndarray | None = None  # what the last round's segments are given

    def encodings(self) -> Iterator[Segment]:
        """The segment of each round, to be run before the next one is asked for."""
        raw = [self.rank.raw(self.gradient, self.part)]
        for round in range(len(self.rank.codec.info.rounds)):
            if round > 0:
                sent = [Source(self.payloads[-1])]
                self.previous = self.rank.merge(self.part, sent, self.step, round=round - 1, previous=self.previous)
            segment = self.rank.encoding(
                self.part, raw, self.step, round=round, previous=self.previous, feedback=True, **self.rest
            )
            yield segment
            self.payloads.append(written(segment))

    def encode(self) -> list[np.ndarray]:
        for segment in self.encodings():
            self.rank.codec.run([segment])
        return self.payloads

    def decoding(self, *payloads: np.ndarray, **rest: Any) -> Segment:
        """A segment that decodes the last round's payload, or merges those given instead."""
        sources = [Source(payload) for payload in payloads or self.payloads[-1:]]
        last = len(self.rank.codec.info.rounds) - 1
        return self.rank.delivering(self.part, sources, self.step, round=last, previous=self.previous, **rest)

    def decode(self, *payloads: np.ndarray, **rest: Any) -> np.ndarray:
        segment = self.decoding(*payloads, **rest)
        self.rank.codec.run([segment])
        return delivered(segment)

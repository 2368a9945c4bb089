"""A codec of the library with what one rank keeps of a gradient, through the same interface as torch_reference.py."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from casync._core import Codec
from casync.compll.conformance.contract import Segment, Source

__all__ = ["Ours", "tensor"]


def tensor(elements: int, quarter: int = 0) -> np.ndarray:
    """Zeroed memory as malloc gets it for a large tensor: from the beginning of a page on, in pages of the usual size,
    where numpy asks for huge ones, and with a page between two tensors, which are else a power of two apart. What the
    runtime keeps begins in another `quarter` of a page (casync/staggered.hpp).
    """
    memory = mmap.mmap(-1, 4 * elements + 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    values = np.frombuffer(memory, np.float32, elements, quarter * mmap.PAGESIZE // 4)
    values[:] = 0
    return values


class Ours:
    def __init__(self, spec: str, shape: tuple[int, int], first: np.ndarray) -> None:
        self.codec, self.shape, self.part = Codec(spec), shape, (0, shape[0] * shape[1])
        self.step = 0
        self.residual = tensor(self.part[1], 3) if self.codec.info.feedback == "wrapper" else None
        self.state = [tensor(array.elements, 1 + i % 3) for i, array in enumerate(self.codec.state(shape))]
        for index, values in enumerate(self.state):
            self.codec.start(shape, 0, index, values)
        rounds = range(len(self.codec.info.rounds))
        self.rooms = [tensor(-(-self.codec.bound(shape, 0, self.part, round) // 4)).view(np.uint8) for round in rounds]
        self.payloads = self.rooms
        if self.codec.agreed():
            values = np.zeros(self.codec.agreed(), np.float32)
            self.codec.propose(self._segment([Source(first, raw=True)]), values)
            self.codec.agree(self._segment([]), values)

    def _segment(self, sources: list[Source], **rest: Any) -> Segment:
        return Segment(
            self.shape, self.part, sources, sequence=self.step, state=self.state, lr=0.1, momentum=0.9, **rest
        )

    def encode(self, gradient: np.ndarray) -> None:
        self.payloads = []
        for round, room in enumerate(self.rooms):
            previous = self.payloads[-1] if round else None
            segment = self._segment(
                [Source(gradient, raw=True)], residual=self.residual, payload=room, round=round, previous=previous
            )
            self.codec.run([segment])
            self.payloads.append(room[: segment.payload_bytes])
        self.step += 1

    def decode(self, out: np.ndarray, ranks: int = 1) -> None:
        """The payloads of so many ranks, which all sent the same."""
        self._deliver([Source(self.payloads[-1])] * ranks, out)

    def merge(self, into: np.ndarray) -> None:
        self._deliver([Source(self.payloads[-1]), Source(into, raw=True)], into)

    def _deliver(self, sources: list[Source], out: np.ndarray) -> None:
        last = len(self.rooms) - 1
        previous = self.payloads[-2] if last else None
        self.codec.run([self._segment(sources, raw_out=out, round=last, previous=previous)])

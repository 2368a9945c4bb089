"""`casync compll bench`: how fast a codec is on one core, beside a copy of the same gradient.

The two are run in turn and each ratio is the median over the turns, in processor time, so that a busy machine slows
both. benchmarks/codec_speed compares the library's codecs with bare C++ loops in the same way; this is for any codec.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from casync.compll.conformance.cases import first_step
from casync.compll.conformance.contract import OWNER, Codec, Segment, Source
from casync.compll.conformance.world import World

__all__ = ["Row", "measure"]

_COLUMNS = 4096
_TURNS = 5
_LINE = 64  # bytes of a cache line, on which frameworks align their tensors


@dataclass(frozen=True)
class Row:
    """GiB of gradient a second, and the time of a copy of the gradient over that of the operation."""

    operation: str
    speed: float
    to_copy: float


def measure(codec: Codec, mib: int) -> Iterator[Row]:
    """Each operation with the instruction set that is in force, on a float32 gradient of `mib` MiB."""
    buffers = _Buffers(codec, (max(1, (mib << 18) // _COLUMNS), _COLUMNS))
    for operation, run in buffers.operations():
        run()
        seconds, ratios = [], []
        for _ in range(_TURNS):
            copy = _seconds(buffers.copy)
            seconds.append(_seconds(run))
            ratios.append(copy / seconds[-1])
        gib = buffers.gradient.nbytes / 2**30
        yield Row(operation, gib / statistics.median(seconds), statistics.median(ratios))


def _seconds(run: Callable[[], None]) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


class _Buffers:
    """Memory that all operations use again, and segments over it."""

    def __init__(self, codec: Codec, shape: tuple[int, int]) -> None:
        self.codec, self.shape = codec, shape
        self.part = (0, shape[0] * shape[1])
        self.gradient, self.out, self.residual = (_aligned(4 * self.part[1]).view(np.float32) for _ in range(3))
        np.random.default_rng(1).standard_normal(dtype=np.float32, out=self.gradient)
        self.step = first_step(codec, shape) or 0
        world = World(codec, shape, first=self.step)
        world.agree([self.gradient])
        self.state = world.ranks[0].state

    def copy(self) -> None:
        ctypes.memmove(self.out.ctypes.data, self.gradient.ctypes.data, self.gradient.nbytes)

    def operations(self) -> Iterator[tuple[str, Callable[[], None]]]:
        wrapped = self.codec.info.feedback == "wrapper"
        rounds = self._encodings(None)
        yield "encode", self._runner(rounds)
        if wrapped:
            yield "encode with feedback", self._runner(self._encodings(self.residual))
        last = rounds[-1]
        assert last.payload is not None
        key = {"round": last.round, "previous": last.previous}
        payloads = [Source(last.payload[: last.payload_bytes].copy()) for _ in range(4)]
        yield "decode", self._runner([self._segment(payloads[:1], raw_out=self.out, **key)])
        if self.codec.info.merges_payloads:
            merged = _aligned(len(last.payload))
            for count in (2, 4):
                one = self._segment(payloads[:count], role=OWNER, payload=merged, **key)
                yield f"merge of {count}", self._runner([one])
            return
        in_place = [payloads[0], Source(self.residual, raw=True)]
        yield "decode + merge of 2", self._runner([self._segment(in_place, raw_out=self.residual, **key)])
        four = [payloads[0], Source(self.gradient, raw=True), *payloads[1:3]]
        yield "decode + merge of 4", self._runner([self._segment(four, raw_out=self.out, **key)])

    def _encodings(self, residual: np.ndarray | None) -> list[Segment]:
        """One for each round, each of them run once: a round needs the payload of the one before."""
        segments: list[Segment] = []
        for round in range(len(self.codec.info.rounds)):
            room = _aligned(self.codec.bound(self.shape, 0, self.part, round))
            before = segments[-1] if segments else None
            previous = None if before is None or before.payload is None else before.payload[: before.payload_bytes]
            raw = [Source(self.gradient, raw=True)]
            segments.append(self._segment(raw, residual=residual, payload=room, round=round, previous=previous))
            self.codec.run(segments[-1:])
        return segments

    def _segment(self, sources: list[Source], **rest: object) -> Segment:
        return Segment(self.shape, self.part, sources, sequence=self.step, state=self.state, **rest)  # type: ignore[arg-type]

    def _runner(self, segments: list[Segment]) -> Callable[[], None]:
        alone = [[segment] for segment in segments]  # rounds follow each other

        def run() -> None:
            for segment in alone:
                self.codec.run(segment)

        return run


def _aligned(size: int) -> np.ndarray:
    whole = np.zeros(size + _LINE, np.uint8)
    begin = -whole.ctypes.data % _LINE
    return whole[begin : begin + size]

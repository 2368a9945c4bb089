"""The state that one rank holds of one gradient, and the calls that the runtime makes for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from casync.compll.conformance.contract import OWNER, Codec, Segment, Source
from casync.compll.conformance.elements import FLOAT32, STORAGE
from casync.compll.conformance.trial import Broken

__all__ = ["NAME", "Range", "Rank", "delivered", "written"]

NAME = 0x0123456789ABCDEF  # the hash of the gradient's name, unless a check needs another
_FENCE = 64  # bytes behind an output that must stay as they are
_UNTOUCHED = 0xFF  # so an element that was not written is NaN

Range = tuple[int, int]


class Rank:
    """Residual and state of one rank, zero or as the codec starts them, and its segments. What a codec writes outside
    of the memory it was given is Broken.
    """

    def __init__(
        self,
        codec: Codec,
        shape: tuple[int, int],
        rank: int = 0,
        world: int = 1,
        dtype: int = FLOAT32,
        name: int = NAME,
        momentum: float = 0.0,
    ) -> None:
        self.codec, self.shape, self.rank, self.world, self.dtype = codec, shape, rank, world, dtype
        self.name, self.momentum = name, momentum
        self.size = shape[0] * shape[1]
        wrapped = codec.info.feedback == "wrapper"
        self.residual = np.zeros(self.size, np.float32) if wrapped else None
        self.declared = codec.state(shape)
        self.state = [np.zeros(array.elements, np.float32) for array in self.declared]
        for index, values in enumerate(self.state):
            codec.start(shape, name, index, values)

    def kept(self) -> dict[str, np.ndarray]:
        """A copy of all that outlives a step, by name."""
        arrays = {array.name: values.copy() for array, values in zip(self.declared, self.state, strict=True)}
        return arrays if self.residual is None else {"the residual": self.residual.copy()} | arrays

    def restore(self, kept: dict[str, np.ndarray]) -> None:
        for array, values in zip(self.declared, self.state, strict=True):
            values[:] = kept[array.name]
        if self.residual is not None:
            self.residual[:] = kept["the residual"]

    def pending(self) -> np.ndarray | None:
        """Return what was not sent yet: the residual, and state arrays declared `pending`. None: nothing is kept."""
        kept = [values for array, values in zip(self.declared, self.state, strict=True) if array.pending]
        kept += [] if self.residual is None else [self.residual]
        total = np.zeros(self.size)
        for values in kept:
            total += values
        return total if kept else None

    def segment(self, part: Range, sources: Sequence[Source], step: int, **rest: Any) -> Segment:
        optimizer: dict[str, Any] = {"lr": 0.1, "momentum": self.momentum} if self.momentum else {}
        return Segment(
            self.shape, part, sources, self.dtype, self.name, step, self.rank,
            state=self.state, world=self.world, **optimizer, **rest,
        )  # fmt: skip

    def raw(self, gradient: np.ndarray, part: Range) -> Source:
        return Source(gradient[part[0] : part[1]], raw=True)

    def bound(self, part: Range, round: int = 0) -> int:
        return self.codec.bound(self.shape, self.dtype, part, round)

    def encoding(self, part: Range, sources: Sequence[Source], step: int, **rest: Any) -> Segment:
        """A segment with room for a payload. `feedback=True`: with the residual of the range."""
        if rest.pop("feedback", False) and self.residual is not None:
            rest["residual"] = self.residual[part[0] : part[1]]
        room = _room(self.bound(part, rest.get("round", 0)))
        return self.segment(part, sources, step, payload=room[: len(room) - _FENCE], **rest)

    def encode(self, gradient: np.ndarray, part: Range, step: int, **rest: Any) -> np.ndarray:
        """This rank's payload of its own gradient."""
        segment = self.encoding(part, [self.raw(gradient, part)], step, **rest)
        self.codec.run([segment])
        return written(segment)

    def merge(self, part: Range, payloads: Sequence[Source], step: int, **rest: Any) -> np.ndarray:
        """Merge payloads of a round into its aggregated one."""
        segment = self.encoding(part, payloads, step, role=OWNER, **rest)
        self.codec.run([segment])
        return written(segment)

    def own(self, part: Range, sources: Sequence[Source], step: int, **rest: Any) -> tuple[np.ndarray, np.ndarray]:
        """Do what the owner does: merge, encode again, deliver what that decodes to. (payload, elements)"""
        segment = self.encoding(part, sources, step, role=OWNER, raw_out=self._room_for(part), **rest)
        self.codec.run([segment])
        return written(segment), delivered(segment)

    def deliver(self, part: Range, sources: Sequence[Source], step: int, **rest: Any) -> np.ndarray:
        """Decode, or merge, and return the elements."""
        segment = self.delivering(part, sources, step, **rest)
        self.codec.run([segment])
        return delivered(segment)

    def delivering(self, part: Range, sources: Sequence[Source], step: int, **rest: Any) -> Segment:
        """Return a segment with room for elements."""
        return self.segment(part, sources, step, raw_out=self._room_for(part), **rest)

    def _room_for(self, part: Range) -> np.ndarray:
        bytes = (part[1] - part[0]) * np.dtype(STORAGE[self.dtype]).itemsize
        room: np.ndarray = _room(bytes)[:bytes].view(STORAGE[self.dtype])
        return room


def written(segment: Segment) -> np.ndarray:
    """The payload that a segment has, checked."""
    assert segment.payload is not None
    if segment.payload_bytes > len(segment.payload):
        raise Broken(f"{segment.payload_bytes} bytes of payload where the bound is {len(segment.payload)}")
    _check_fence(segment.payload, f"bytes behind the bound of {len(segment.payload)} were written")
    payload: np.ndarray = segment.payload[: segment.payload_bytes].copy()
    return payload


def delivered(segment: Segment) -> np.ndarray:
    assert segment.raw_out is not None
    _check_fence(segment.raw_out, "elements behind the range were written")
    elements: np.ndarray = segment.raw_out.copy()
    return elements


def _room(bytes: int) -> np.ndarray:
    return np.full(bytes + _FENCE, _UNTOUCHED, np.uint8)


def _check_fence(room: np.ndarray, text: str) -> None:
    assert room.base is not None  # what _room made
    if (room.base[-_FENCE:] != _UNTOUCHED).any():
        raise Broken(text)

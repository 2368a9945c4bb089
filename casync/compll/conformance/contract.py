"""The codec contract (casync_core/include/casync/codec.hpp) as the kit speaks it: a codec of the core,
`casync._core.Codec`, or anything with the same methods, computes segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

__all__ = ["OWNER", "WORKER", "Codec", "Info", "Segment", "Source", "StateArray"]

WORKER, OWNER = 0, 1


@dataclass
class Source:
    """One contribution: a payload, or the raw elements of the range."""

    data: np.ndarray
    raw: bool = False


@dataclass
class Segment:
    """One compute task over `range` of a gradient of `shape` (rows, columns). Arrays are contiguous; `residual` and
    outputs begin at the range, arrays of `state` at their own beginning. `run` sets payload_bytes and nonfinite.
    """

    shape: tuple[int, int]
    range: tuple[int, int]
    sources: Sequence[Source]
    dtype: int = 0
    name_hash: int = 0
    sequence: int = 0
    rank: int = 0
    role: int = WORKER
    round: int = 0
    pre: float = 1.0
    mid: float = 1.0
    post: float = 1.0
    previous: np.ndarray | None = None
    residual: np.ndarray | None = None
    state: Sequence[np.ndarray] = ()
    world: int = 1
    lr: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    payload: np.ndarray | None = None
    raw_out: np.ndarray | None = None
    payload_bytes: int = 0
    nonfinite: bool = False

    @property
    def elements(self) -> int:
        return self.range[1] - self.range[0]


class Info(Protocol):
    """A codec's facts about itself. `rounds`: reduce, reencode or gather; `feedback`: none, wrapper or own;
    `feedback_decay`: the factor of the runtime's residual.
    """

    @property
    def spec(self) -> str: ...
    @property
    def rounds(self) -> list[str]: ...
    @property
    def feedback(self) -> str: ...
    @property
    def feedback_decay(self) -> float: ...
    @property
    def identity(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    @property
    def fixed_size(self) -> bool: ...
    @property
    def prescaled(self) -> bool: ...
    @property
    def merges_payloads(self) -> bool: ...
    @property
    def merged_element(self) -> str: ...
    @property
    def momentum(self) -> bool: ...


class StateArray(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def elements(self) -> int: ...
    @property
    def per_element(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    @property
    def pending(self) -> bool: ...


class Codec(Protocol):
    @property
    def info(self) -> Info: ...
    def cut(self, shape: tuple[int, int], element: int) -> int: ...
    def bound(self, shape: tuple[int, int], dtype: int, range: tuple[int, int], round: int) -> int: ...
    def run(self, segments: Sequence[Any]) -> None: ...
    def state(self, shape: tuple[int, int]) -> Sequence[StateArray]: ...
    def start(self, shape: tuple[int, int], name_hash: int, index: int, values: np.ndarray) -> None: ...
    def agreed(self) -> int: ...
    def propose(self, segment: Any, values: np.ndarray) -> None: ...
    def agree(self, segment: Any, values: np.ndarray) -> None: ...
    def applies(self, shape: tuple[int, int], sequence: int) -> bool: ...

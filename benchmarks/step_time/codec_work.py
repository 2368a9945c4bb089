"""The work of a codec in one step of one rank, without runtime or network: the least that its processor has to do.

Each gradient is encoded as soon as it is written and all are decoded in the end, in place. What an owner merges for the
others is left out; where payloads are gathered, those of all ranks are decoded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.codec_speed.ours import Ours, tensor
from casync._core import Codec
from casync.config.settings import Config

__all__ = ["CodecWork"]


class CodecWork:
    def __init__(self, spec: str, shapes: Sequence[Sequence[int]], ranks: int) -> None:
        self._ranks = ranks
        self._gradients: list[tuple[int, np.ndarray, Ours]] = []
        for index, shape in enumerate(shapes):
            rows, cols = shape[0], math.prod(shape[1:])
            if rows * cols < Config().min_numel or Codec(spec).info.identity:
                continue
            gradient = tensor(rows * cols)
            codec = Ours(spec, (rows, cols), gradient)
            if codec.codec.applies((rows, cols), 0):
                self._gradients.append((index, gradient, codec))

    def step(self, write: Callable[[np.ndarray, int], None]) -> float:
        """Seconds of the codec; `write` gives the gradient of a shape's index, as backward does, from the last on."""
        seconds = 0.0
        for index, gradient, codec in reversed(self._gradients):
            write(gradient, index)
            begin = time.perf_counter()
            codec.encode(gradient)
            seconds += time.perf_counter() - begin
        begin = time.perf_counter()
        for _, gradient, codec in reversed(self._gradients):
            codec.decode(gradient, self._ranks if codec.codec.info.rounds[0] == "gather" else 1)
        return seconds + time.perf_counter() - begin

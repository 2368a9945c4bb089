"""Gradients to try a codec on: sizes around its unit, shapes, element types, and what values may be like."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from casync.compll.conformance.contract import Codec
from casync.compll.conformance.elements import DTYPES, FLOAT32, to_elements

__all__ = ["KINDS", "SHAPES", "Case", "cases", "first_step", "partitions", "some_units", "units", "vectors"]

Random = np.random.Generator
KINDS: dict[str, Callable[[Random, int], np.ndarray]] = {
    "normal": lambda random, n: random.standard_normal(n) * 0.01,
    "sparse": lambda random, n: random.standard_normal(n) * (random.random(n) < 0.01),
    "constant": lambda random, n: np.full(n, -0.375),
    "equal": lambda random, n: np.full(n, np.float32(0.08847743)),  # the mean of these need not be one of them
    "zero": lambda random, n: np.where(random.random(n) < 0.5, 0.0, -0.0),
    "positive": lambda random, n: 3 + random.random(n),
    "heavy-tailed": lambda random, n: 1e-4 * random.standard_normal(n) / (random.random(n) + 1e-6),
    "tiny": lambda random, n: random.standard_normal(n) * 1e-30,
    "subnormal": lambda random, n: random.standard_normal(n) * 1e-42,
    "huge": lambda random, n: random.standard_normal(n) * 1e30,
}
SHAPES = ((3, 4097), (7, 5000), (37, 255), (300, 17), (5, 1024), (64, 96), (256, 384))
_SMALL = (0, 1, 2, 7, 33, 127)
_STEPS = (0, 1, 10, 100, 1000, 10_000, 1_000_000)
_ENOUGH = 10_000
_LARGE = 1 << 18
_LONG = 1 << 22
_LEAST_UNIT = 64


@dataclass(frozen=True)
class Case:
    """A gradient that its seed makes."""

    shape: tuple[int, int]
    kind: str = "normal"
    seed: int = 0
    dtype: int = FLOAT32
    step: int = 0

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    def values(self, other: int = 0) -> np.ndarray:
        """float32. `other` numbers further gradients of the same case: other ranks', other steps'."""
        return np.roll(_values(self.shape, self.kind, self.seed), 1009 * other)

    def elements(self, other: int = 0) -> np.ndarray:
        return to_elements(self.values(other), self.dtype)

    def __str__(self) -> str:
        rows, cols = self.shape
        text = f"{rows} x {cols} gradient of {DTYPES[self.dtype]}, {self.kind} values, seed {self.seed}"
        return text + (f", step {self.step}" if self.step else "")


@functools.lru_cache(maxsize=16)
def _values(shape: tuple[int, int], kind: str, seed: int) -> np.ndarray:
    return KINDS[kind](np.random.default_rng([seed, *shape]), shape[0] * shape[1]).astype(np.float32)


def cases(
    codec: Codec,
    shapes: Iterable[tuple[int, int]],
    kinds: Iterable[str] = ("normal",),
    dtypes: Iterable[int] = (FLOAT32,),
    seeds: Iterable[int] = (1,),
) -> Iterator[Case]:
    """All combinations, at the first step in which the codec applies to the shape; shapes that it never does are left
    out.
    """
    for shape, kind, dtype, seed in itertools.product(shapes, kinds, dtypes, seeds):
        if (step := first_step(codec, shape)) is not None:
            yield Case(shape, kind, seed, dtype, step)


def first_step(codec: Codec, shape: tuple[int, int]) -> int | None:
    return next((step for step in _STEPS if codec.applies(shape, step)), None)


def vectors(codec: Codec) -> list[tuple[int, int]]:
    """Vectors of few elements, of about a unit, of three units, and a large one."""
    unit = _usual_unit(codec)
    three = 2 * unit + 5
    sizes = {*_SMALL, unit - 1, unit, unit + 1, three, max(_LARGE + 3, three)}
    return [(size, 1) for size in sorted(sizes)]


def some_units(codec: Codec) -> list[tuple[int, int]]:
    """A vector of three units at least, and matrices; not too large."""
    return [(max(2 * _usual_unit(codec) + 5, _ENOUGH), 1), SHAPES[0], SHAPES[-1]]


def _usual_unit(codec: Codec) -> int:
    return _ENOUGH if codec.info.whole else next(units(codec, (_LONG, 1)))[1]


def units(codec: Codec, shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The ranges that statistics are taken over; joined until they have 64 elements."""
    size = shape[0] * shape[1]
    begin = 0
    while begin < size:
        end = _next_boundary(codec, shape, begin, size)
        yield begin, end
        begin = end


def partitions(codec: Codec, shape: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """Return at most `count` ranges of whole units, as the planner cuts them."""
    size = shape[0] * shape[1]
    ends = sorted({codec.cut(shape, size * (i + 1) // count) for i in range(count)} | {size})
    ends = [end for end in ends if end > 0] or [size]
    return list(zip([0, *ends], ends, strict=False))


def _next_boundary(codec: Codec, shape: tuple[int, int], begin: int, size: int) -> int:
    step = _LEAST_UNIT
    while begin + step < size and codec.cut(shape, begin + step) <= begin:
        step *= 2
    low, high = begin, min(begin + step, size)
    if step == _LEAST_UNIT:
        return codec.cut(shape, high)
    while high - low > 1:  # the first element e for which cut(e) has left `begin` behind
        middle = (low + high) // 2
        low, high = (low, middle) if codec.cut(shape, middle) > begin else (middle, high)
    return codec.cut(shape, high)

"""Heads: before a round each rank tells the others its weight, a sample of its change, and whether that is finite.

A head is a row of numbers that is summed over the ranks. A rank that has joined (`hvd.join`) adds zeros, and so is seen
to be absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from casync.tensors.adaptor import T, Tensors

__all__ = ["SAMPLES", "Heard", "head", "hear", "length", "sampled"]

SAMPLES = 256
"""At most so many elements of a change are in a head, from which the distance of the ranks is estimated."""
_FIELDS = 3  # after the ranks' own: place, its square, weighted sum of the squares of the samples
_BROKEN, _REFUSES = 0.25, 0.5  # in place of a rank's weight, which is told as a number from 1 on
_PLACES = 1 << 20  # small enough for exact sums of squares in float64, over 8,000 ranks


def length(size: int) -> int:
    """How many numbers of float64 the head of a world of `size` ranks has."""
    return size + _FIELDS + SAMPLES


@dataclass(frozen=True)
class Heard:
    """The heads of all ranks."""

    weights: tuple[float, ...]
    """How much each rank's change counts; 0 for a rank that takes no part."""
    broken: tuple[int, ...]
    """The ranks whose change is not finite."""
    refusing: tuple[int, ...]
    """The ranks that cannot take part."""
    all_done: bool
    """Whether every rank that is present has ended its training."""
    same_place: bool
    """Whether all ranks are in the same round of the same fragment."""
    spread: float
    """The sum over the samples of their variance over the ranks, by weight."""

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return math.fsum(self.weights)

    def factor(self, rank: int) -> float:
        """By what `rank` multiplies its change, so that the plain mean over all ranks is the weighted one."""
        return self.weights[rank] * len(self.weights) / self.total


def head(
    rank: int, size: int, *, weight: float, is_finite: bool, is_done: bool, place: int, samples: Sequence[float],
    refuses: bool = False,
) -> list[float]:  # fmt: skip
    """The head of `rank`. `place` is the number of the round; `samples` are elements of the change; `refuses` says that
    the rank cannot take part, and why it will say later.
    """
    told = 1.0 + weight
    own = [0.0] * size
    own[rank] = _REFUSES if refuses else _BROKEN if not is_finite else -told if is_done else told
    known = samples if is_finite else []
    weighted = [weight * one for one in known] + [0.0] * (SAMPLES - len(known))
    number = float(place % _PLACES)
    return [*own, number, number**2, weight * math.fsum(one * one for one in known), *weighted]


def hear(total: Sequence[float]) -> Heard:
    """What the sum of all heads says. The same on all ranks, since the sum is."""
    size = len(total) - length(0)
    told = [float(number) for number in total[:size]]
    present = [number for number in told if number != 0]
    weights = tuple(abs(number) - 1.0 if abs(number) >= 1.0 else 0.0 for number in told)
    place, square = int(total[size]), int(total[size + 1])
    whole = math.fsum(weights) or 1.0
    mean_square = float(total[size + 2]) / whole
    square_of_means = math.fsum((float(one) / whole) ** 2 for one in total[size + _FIELDS :])
    return Heard(
        weights=weights,
        broken=tuple(rank for rank, number in enumerate(told) if number == _BROKEN),
        refusing=tuple(rank for rank, number in enumerate(told) if number == _REFUSES),
        all_done=all(number < 0 for number in present),
        same_place=len(present) * square == place * place,  # Cauchy and Schwarz: equal only if all places are
        spread=max(0.0, mean_square - square_of_means),
    )


def sampled(tensors: Tensors[T], values: Sequence[T], place: int) -> list[float]:
    """Some elements of these tensors, at equal distances; others in each round, and alike on all ranks."""
    sizes = [math.prod(tensors.shape(one)) for one in values]
    stride = max(1, -(-sum(sizes) // SAMPLES))
    found: list[float] = []
    before = place * 7919  # a prime
    for one, size in zip(values, sizes, strict=True):
        if (first := -before % stride) < size:
            found += tensors.every(one, first, stride)
        before += size
    return found[:SAMPLES]

"""Is a codec harming the training? How often that is measured, and what follows from the numbers.

Pure. What is decided is a function of sums over the ranks alone, so all ranks decide the same in the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from casync.errors import InvalidArgumentError

__all__ = [
    "REMEMBERED",
    "CompressionMonitor",
    "Measured",
    "Sums",
    "fault",
    "is_due",
    "measured",
    "places",
    "residual_ratio",
]

_PRIME = 7919
REMEMBERED = 8
"""So many measurements are compared. A batch that is learnt well has a gradient that is orders of magnitude smaller."""


@dataclass(frozen=True)
class CompressionMonitor:
    """Measures what codecs do to gradients, and warns of harm: for `monitor=` of `DistributedOptimizer` and
    `ddp_state`. docs/watching.md says what the numbers mean. Raises `InvalidArgumentError` for what cannot be.

    Args:
        every: steps between two measurements. The first ones are in steps 1, 2, 4, 8 and so on.
        sample: at most so many elements of each gradient are sent uncompressed in a step that is measured.
        error_bound: the largest vNMSE of a gradient whose codec keeps no residual. With a residual it is no sign of
            harm. By default there is none: as ranks come to agree on nothing but noise, their mean becomes small, and
            the vNMSE large.
        residual_bound: the largest `|residual| / |gradient|`, as far as the residual grows.
        rises: a residual beyond its bound is a fault if it has grown in so many measurements, one after the other.
        fallback: what a gradient at fault goes with from then on: "bf16" or "fp16". None: there is a warning, and no
            more.
    """

    every: int = 100
    sample: int = 4096
    error_bound: float = math.inf
    residual_bound: float = 20.0
    rises: int = 2
    fallback: str | None = None

    def __post_init__(self) -> None:
        for name in ("every", "sample", "rises"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise InvalidArgumentError(f"{name}={number!r}: it must be a number from 1 on")
        for name in ("error_bound", "residual_bound"):
            bound = getattr(self, name)
            if not isinstance(bound, int | float) or isinstance(bound, bool) or not bound > 0:
                raise InvalidArgumentError(f"{name}={bound!r}: it must be a number above 0; math.inf is no bound")
        if self.fallback not in (None, "bf16", "fp16"):
            raise InvalidArgumentError(f'fallback={self.fallback!r}: it must be "bf16", "fp16" or None')


def is_due(step: int, every: int) -> bool:
    """Whether `step`, of which the first is 1, is measured. A codec that diverges does so from the beginning, and
    within few steps, so the first measurements are close together.
    """
    return step % every == 0 or (step < every and step & (step - 1) == 0)


def places(numel: int, sample: int, step: int) -> tuple[int, int]:
    """The first element that is measured, and the stride to the next ones; others in each step."""
    stride = max(1, -(-numel // sample))
    return step * _PRIME % stride, stride


class Sums(NamedTuple):
    """A measurement of one gradient: sums over the ranks, and so the same on all of them."""

    error: float
    """Squared differences of the result from the true one, over the sampled elements."""
    square: float
    """Squares of the true result, over the same elements."""
    residual: float
    """Squares of all that codecs hold back of the gradient."""
    gradient: float
    """Squares of the ranks' own gradients."""
    keepers: float
    """Ranks that hold something back."""
    nonfinite: float
    """Ranks whose own gradient has NaN or infinity. Their other numbers are zeros."""
    broken: float
    """Ranks of which the result or the residual has NaN or infinity, and the gradient has not."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a gradient. A number that is None could not be measured."""

    error: float | None
    """vNMSE: `|result - true|² / |true|²`."""
    residual: float | None
    """`|residual|`, over all ranks."""
    gradient: float = 0.0
    """`|gradient|`, over all ranks."""


def measured(sums: Sums) -> Measured | None:
    """Return the measurement that the sums give.

    None if a rank's own gradient was not finite, which is no fault of a codec.
    """
    if sums.nonfinite:
        return None
    if sums.broken:
        return Measured(math.inf, math.inf if sums.keepers else None, math.sqrt(sums.gradient))
    error = sums.error / sums.square if sums.square else None
    return Measured(error, math.sqrt(sums.residual) if sums.keepers else None, math.sqrt(sums.gradient))


def residual_ratio(history: Sequence[Measured]) -> float | None:
    """The last `|residual|` against the largest `|gradient|` of the measurements so far; None if either is missing.

    Against the gradient of its own step it would be large whenever a batch happens to be learnt already.
    """
    gradient = max(one.gradient for one in history)
    residual = history[-1].residual
    return None if residual is None or gradient == 0 else residual / gradient


def fault(history: Sequence[Measured], monitor: CompressionMonitor) -> str | None:
    """What is wrong with a codec, by its measurements so far; None: nothing."""
    last = history[-1]
    if math.inf in (last.error, last.residual):
        return "has made NaN or infinity of gradients that were finite"
    if last.residual is None:
        if last.error is None or last.error <= monitor.error_bound:
            return None
        return f"has a vNMSE of {last.error:.3g}, and its bound is {monitor.error_bound:g}"
    ratio = residual_ratio(history)
    recent = [one.residual for one in history[-monitor.rises - 1 :] if one.residual is not None]
    rises = sum(before < after for before, after in zip(recent, recent[1:], strict=False))
    if ratio is None or ratio <= monitor.residual_bound or rises < monitor.rises:
        return None
    return (
        f"holds back {ratio:.3g} times the gradient, and its bound is {monitor.residual_bound:g}; that has grown in "
        f"{monitor.rises} measurements, one after the other"
    )

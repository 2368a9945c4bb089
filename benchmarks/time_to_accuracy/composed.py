"""Composed times: steps to a loss, from curves, times the seconds of a step, and how these are measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.methods import BASELINE, METHODS, Method

__all__ = ["Composed", "composed", "steps_to", "words_of"]

COMPUTE = 0.1  # seconds of a step


def words_of(method: Method, numel: float) -> tuple[list[str], int]:
    """How `benchmarks.local_steps.worker` makes the steps of a way, and how many it has in what it measures."""
    if method.every == 0:
        contender, steps = f"every:{method.codec}", 6
    else:
        contender, steps = f"{'streaming' if method.delay else 'blocking'}:{method.codec}", method.every
    words = [f"--contender={contender}", f"--numel={numel}", f"--every={steps}", f"--compute={COMPUTE * steps}"]
    return [*words, "--rounds=2", f"--fragments={method.fragments}", f"--delay={method.delay}"], steps


def steps_to(curves: Sequence[Sequence[Sequence[float]]], loss: float) -> float | None:
    """The step at which the mean of these curves (of points: step, loss) falls to `loss`, between two points by a
    straight line; None if it never does.
    """
    before: tuple[float, float] | None = None
    for points in zip(*curves, strict=True):
        step: float = points[0][0]
        mean: float = statistics.mean(point[1] for point in points)
        if mean <= loss:
            if before is None:
                return step
            return before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - mean)
        before = (step, mean)
    return None


@dataclass(frozen=True)
class Composed:
    steps: float | None
    """To the loss; None: never reached."""
    seconds: float
    """Of a step, once the warm-up is over."""
    total: float | None
    """Seconds to the loss. Steps of a warm-up take as long as those of the baseline."""


def composed(fidelity: Mapping[str, Any], seconds: Mapping[str, Any], within: float) -> dict[str, Composed]:
    """Return the time of each way that both files have, to the baseline's last loss and the part `within` of it."""
    target = (1 + within) * statistics.mean(run["loss"] for run in fidelity[BASELINE].values())
    found = {}
    for name, runs in fidelity.items():
        if name not in seconds:
            continue
        steps, each = steps_to([run["curve"] for run in runs.values()], target), float(seconds[name]["seconds"])
        total = None
        if steps is not None:
            first = min(steps, METHODS[name].warmup)
            total = first * float(seconds[BASELINE]["seconds"]) + (steps - first) * each
        found[name] = Composed(steps, each, total)
    return found

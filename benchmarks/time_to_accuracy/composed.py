"""Composed times: steps to a loss, from curves, times the seconds of a step, and how these are measured."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.methods import BASELINE, METHODS, Method

__all__ = [
    "COMPUTE", "MACHINE", "REAL", "Composed", "Times", "composed", "in_words", "links_of", "markdown", "steps_to",
    "times_of", "words_of",
]  # fmt: skip

MACHINE, REAL = "machine", "real runs"
"""The keys of the file of figures that are no links."""
COMPUTE = 0.1
"""Seconds for which a step of the models that are timed computes."""
_START = re.compile(r"start_step=(\d+)")


def words_of(method: Method, numel: float, compute: float) -> tuple[list[str], int]:
    """How `benchmarks.local_steps.worker` makes the steps of a way, each with `compute` seconds, and how many it has in
    what it measures.
    """
    codec = _START.sub("start_step=0", method.codec)
    if method.every == 0:
        contender = f"hook:{method.hook}" if method.hook else f"every:{codec}"
        steps = 8 if codec.startswith("covap") else 6  # a whole number of its intervals
    else:
        contender, steps = f"{'streaming' if method.delay else 'blocking'}:{codec}", method.every
    words = [f"--contender={contender}", f"--numel={numel}", f"--every={steps}", f"--compute={compute * steps}"]
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


def _steps_before(method: Method) -> int:
    """Return how many steps send every gradient uncompressed before rounds, or the codec, begin."""
    start = _START.search(method.codec)
    return int(start[1]) if start and method.every == 0 else method.warmup


@dataclass(frozen=True)
class Composed:
    steps: float | None
    """To the loss; None: never reached."""
    seconds: float
    """How long a step takes once the warm-up is over."""
    total: float | None
    """Seconds to the loss. Steps of a warm-up, and those before a codec's first, take as long as the baseline's."""


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
            first = min(steps, _steps_before(METHODS[name]))
            total = first * float(seconds[BASELINE]["seconds"]) + (steps - first) * each
        found[name] = Composed(steps, each, total)
    return found


Times = Mapping[str, Mapping[str, Composed]]
"""By link, and by way."""


def links_of(figures: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The seconds of steps by link, which the file of figures has beside other things."""
    return {key: one for key, one in figures.items() if key not in (MACHINE, REAL)}


def times_of(
    fidelity: Mapping[str, Any], links: Mapping[str, Mapping[str, Any]], within: float, names: Collection[str]
) -> Times:
    """The time of each of these ways at each link."""
    found = {link: composed(fidelity, seconds, within) for link, seconds in links.items()}
    return {link: {name: times[name] for name in names if name in times} for link, times in found.items()}


def markdown(times: Times) -> str:
    """A row for each way: its steps to the loss, and for each link the seconds of a step and the composed time."""
    columns = [column for link in times for column in (f"{link}: s a step", "hours", "of bf16's")]
    lines = [f"| way | steps | {' | '.join(columns)} |", "|---|---" + "|---" * len(columns) + "|"]
    for name in dict.fromkeys(name for found in times.values() for name in found):
        cells, steps = [], None
        for found in times.values():
            one, whole = found.get(name), found[BASELINE].total
            if one is None:
                cells += ["", "", ""]
                continue
            steps = one.steps
            reached = one.total is not None and whole is not None
            cells.append(f"{one.seconds:.3f}")
            cells += [f"{one.total / 3600:.2f}", f"{one.total / whole:.3f}"] if reached else ["", ""]  # type: ignore[operator]
        lines.append(f"| {name} | {'never' if steps is None else f'{steps:.0f}'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def in_words(times: Times, link: str, within: float) -> str:
    """Return the README's sentences on one link: the baseline's time, and that of the quickest way of each kind."""
    found = times[link]
    whole = found[BASELINE].total
    assert whole is not None
    reached = {name: one.total for name, one in found.items() if one.total is not None}
    every = [name for name in reached if METHODS[name].every == 0 and not METHODS[name].hook and name != BASELINE]
    seldom = [name for name in reached if METHODS[name].every > 0]
    quick = [min(names, key=lambda name: reached[name]) for names in (every, seldom) if names]
    ways = [f"{reached[name] / 3600:.2f} hours by `{name}`" for name in quick]
    rate = link.partition(",")[0].replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
    return (
        f"Over links of {rate} a training takes {whole / 3600:.2f} hours with gradients of 16 bits,\n"
        f"until its loss is within {100 * within:g} % of the last one.\nIt takes {' and '.join(ways)}."
    )

"""How often to send, where sending in every step leaves a rank waiting for too long. Pure: no clock, no ranks.

ways = {"none": Sync(round_s=12.7, step_s=13.7), "onebit": Sync(round_s=0.5, step_s=1.5)}
advice(ways, compute_s=1.0, wished=0.95)  # "In every step the utilisation is 0.67 at most. Send every 3 steps ..."
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from casync.errors import InvalidArgumentError

__all__ = ["COLUMNS", "Interval", "Sync", "advice", "rows", "streaming", "waiting"]

COLUMNS = ("codec", "round", "utilisation", "wait every", "stream every", "delay")
"""The headings: seconds of a round; the utilisation if gradients are sent in every step; the shortest `sync_every` that
is enough without a delay, and with one; that delay."""


@dataclass(frozen=True)
class Sync:
    """The times of synchronisation under one codec."""

    round_s: float
    """Seconds of a synchronisation by itself."""
    step_s: float
    """Seconds of a step that computes and synchronises its gradients."""


@dataclass(frozen=True)
class Interval:
    """Rounds of DiLoCo or local SGD."""

    every: int
    """Steps between two rounds: `sync_every`."""
    delay: int
    """Steps that are made while a round is under way: `fragment_sync_delay`. 0: the rank waits."""
    utilisation: float
    """The part of the time in which a rank computes."""


def waiting(compute_s: float, round_s: float, wished: float) -> Interval:
    """The shortest interval with which a rank that waits for each round computes for `wished` of the time.

    `compute_s` are the seconds in which a step computes, and `wished` is more than 0 and less than 1.
    """
    _check_computes(compute_s)
    if not 0 < wished < 1:
        raise InvalidArgumentError(f"utilisation={wished}: it must be more than 0 and less than 1")
    every = max(1, math.ceil(round(wished * round_s / ((1 - wished) * compute_s), 9)))
    return Interval(every, 0, every * compute_s / (every * compute_s + round_s))


def streaming(compute_s: float, round_s: float, fragments: int = 1) -> Interval:
    """The shortest interval with which a rank never waits: each round ends while the rank computes.

    `round_s` are the seconds of the round of one fragment. In the first of the delay's steps the ranks agree.
    """
    _check_computes(compute_s)
    steps = max(1, math.ceil(round(round_s / compute_s, 9)))  # of a round; the next one begins when it has ended
    delay = 1 + steps
    return Interval(max(delay + 1, fragments * steps), delay, 1.0)


def _check_computes(compute_s: float) -> None:
    if not compute_s > 0:
        raise InvalidArgumentError(f"a step that computes for {compute_s} s: give a time above 0")


def rows(ways: Mapping[str, Sync], compute_s: float, wished: float) -> list[tuple[str, ...]]:
    """A row of cells for each codec, under `COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for codec, way in ways.items():
        blocking, hidden = waiting(compute_s, way.round_s, wished), streaming(compute_s, way.round_s)
        times = f"{way.round_s:.3g} s", f"{compute_s / way.step_s:.2f}"
        found.append((codec, *times, str(blocking.every), str(hidden.every), str(hidden.delay)))
    return found


def advice(ways: Mapping[str, Sync], compute_s: float, wished: float) -> str:
    """What to do, in one sentence: the first codec that is enough in every step, or else the one with which rounds can
    come soonest.
    """
    for codec, way in ways.items():
        if compute_s / way.step_s >= wished:
            return f"Send in every step, {_how(codec)}: utilisation {compute_s / way.step_s:.2f}."
    codec = min(ways, key=lambda one: streaming(compute_s, ways[one].round_s).every)
    hidden, blocking = streaming(compute_s, ways[codec].round_s), waiting(compute_s, ways[codec].round_s, wished)
    best = max(compute_s / way.step_s for way in ways.values())
    return (
        f"In every step the utilisation is {best:.2f} at most. Send every {hidden.every} steps, {_how(codec)}, with "
        f"fragment_sync_delay={hidden.delay}: nobody waits. Or every {blocking.every} steps without a delay: "
        f"utilisation {blocking.utilisation:.2f}."
    )


def _how(codec: str) -> str:
    return "uncompressed" if codec == "none" else f"under {codec}"

"""The ways that `casync bench` compares, and what it concludes. Pure: no clock, no ranks, no files.

contenders(["terngrad(bits=2)"])       # ["none", "fp16", "onebit", "terngrad(bits=2)"]
verdict({"none": 1.0, "onebit": 0.2})  # "Compress with onebit: ..."
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from casync.errors import NotAvailableError
from casync.observe.step_profile import Gradient, Observation
from casync.plan.plans import GradientPlan

__all__ = [
    "AUTO",
    "COLUMNS",
    "DO_NOT_COMPRESS",
    "WARM_UP",
    "Links",
    "Measured",
    "ShapesError",
    "Way",
    "automatic",
    "best",
    "contenders",
    "counted",
    "dtype_of",
    "gradient_bytes",
    "is_way_of_its_own",
    "links_of",
    "own_plans",
    "ready_times",
    "renamed",
    "rows",
    "seconds_text",
    "shapes_of",
    "step_of",
    "verdict",
]

AUTO = "auto"
DO_NOT_COMPRESS = "Do not compress: your links are fast enough."
WARM_UP = 2
"""How many steps of each contender do not count. Names are negotiated in them, and memory is taken."""
COLUMNS = ("compression", "step", "against none", "sent a step", "codecs' work", "steps")

_DEFAULT = ("none", "fp16", "onebit")
_WORTH = 0.03
_PREFIX = "allreduce."  # of the name under which the ranks know a gradient

Shapes = dict[str, tuple[int, ...]]


class ShapesError(ValueError):
    """Text that is no table of gradients; says why."""


@dataclass(frozen=True)
class Way:
    """The measurements of one way to synchronise. All figures are of one step on rank 0."""

    step_s: float
    """The median of the steps' times."""
    steps: int
    """How many steps it is the median of."""
    sent_bytes: int
    """Bytes sent. Heads of messages and control messages count; the network's own headers do not."""
    codec_s: float
    """Seconds in which codecs encoded, merged and decoded, on all threads together."""
    plans: Mapping[str, GradientPlan] = field(default_factory=dict)
    """The plans, by the name under which a job's ranks know the gradient."""
    alone_s: float | None = None
    """The median of the times of synchronisation alone, if that was measured too: what a round of DiLoCo takes."""


@dataclass(frozen=True)
class Links:
    """The speeds that the planner measured, in bytes per second; None where there is no such link, or no figure."""

    between_hosts: float | None
    inside_host: float | None


@dataclass(frozen=True)
class Measured:
    """The outcome of all measuring."""

    ranks: int
    hosts: int
    ways: Mapping[str, Way]
    """The ways, in the order of `contenders`; `auto` is the last one, if it compresses anything."""
    links: Links
    comparison: str
    """The line in which `auto` says what it compared; empty if it did not get that far."""


def shapes_of(text: str) -> Shapes:
    """Shapes by the gradient's name, in the order of the forward pass: a JSON object of lists.

    Raises `ShapesError`, with what is wrong, for any other text.
    """
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ShapesError(f"not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise ShapesError('write an object with each gradient\'s shape by its name, {"fc.weight": [10, 512]}')
    for name, shape in found.items():
        if not isinstance(shape, list) or any(type(extent) is not int or extent < 1 for extent in shape):
            raise ShapesError(f"gradient {name!r}: its shape must be a list of whole numbers above 0, not {shape!r}")
    return {name: tuple(shape) for name, shape in found.items()}


def step_of(shapes: Mapping[str, tuple[int, ...]], backward_s: float) -> Observation:
    """The step of a program with float32 gradients of these shapes, in the order of the forward pass, whose backward
    pass takes `backward_s` seconds.
    """
    names = list(shapes)[::-1]
    ready = ready_times([math.prod(shapes[name]) for name in names], backward_s)
    gradients = [Gradient(name, shapes[name], "float32", at) for name, at in zip(names, ready, strict=True)]
    return Observation(tuple(gradients), backward_s)


def dtype_of(gradient: Gradient) -> np.dtype[Any]:
    """Return its dtype in NumPy. Raises `NotAvailableError` for bfloat16 where the package ml_dtypes, which makes it,
    is not installed.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("ml_dtypes")
    try:
        return np.dtype(gradient.dtype)
    except TypeError:
        raise NotAvailableError(
            f"gradient {gradient.name} is {gradient.dtype}, which NumPy has once the package ml_dtypes is installed"
        ) from None


def gradient_bytes(step: Observation) -> int:
    """Return the bytes of all gradients of one rank."""
    return sum(math.prod(one.shape) * dtype_of(one).itemsize for one in step.gradients)


def contenders(further: Sequence[str]) -> list[str]:
    """Return the codecs that take turns, each once; those that change training least come first."""
    return list(dict.fromkeys((*_DEFAULT, *further)))


def automatic(further: Sequence[str]) -> str:
    """Return `auto` as a script names it, with the same candidates."""
    return f"auto({', '.join(contenders(further)[1:])})" if further else AUTO


def ready_times(sizes: Sequence[int], backward_s: float) -> list[float]:
    """Return when each gradient is ready, in seconds from the beginning of a backward pass of `backward_s` seconds.

    `sizes` are numbers of elements, in the order in which they become ready: a gradient takes its share of the time.
    """
    total, done, times = sum(sizes), 0, []
    for size in sizes:
        done += size
        times.append(backward_s * done / total)
    return times


def counted(seconds: Sequence[float]) -> list[float]:
    """The steps that count: all after the warm-up, or the last one if there are none after it."""
    return list(seconds[WARM_UP:] or seconds[-1:])


def best(times: Mapping[str, float]) -> str:
    """The way to recommend, from seconds of a step by way: the first one within 3 % of the fastest."""
    fastest = min(times.values())
    return next(way for way, seconds in times.items() if fastest >= (1 - _WORTH) * seconds)


def verdict(times: Mapping[str, float]) -> str:
    """The answer in one sentence, from seconds of a step by way, `none` among them."""
    chosen = best(times)
    if chosen == "none":
        return DO_NOT_COMPRESS
    others = [f"{seconds_text(times['none'])} uncompressed"]
    if chosen != "fp16" and "fp16" in times:
        others.append(f"{seconds_text(times['fp16'])} with fp16")
    return f"Compress with {chosen}: a step takes {seconds_text(times[chosen])}, against {' and '.join(others)}."


def rows(ways: Mapping[str, Way]) -> list[tuple[str, ...]]:
    """A row of cells for each way, under `COLUMNS`."""
    plain = ways["none"].step_s
    return [
        (
            name,
            seconds_text(way.step_s),
            f"{plain / way.step_s:.2f} x",
            f"{way.sent_bytes / 2**20:.2f} MiB",
            seconds_text(way.codec_s),
            str(way.steps),
        )
        for name, way in ways.items()
    ]


def seconds_text(seconds: float) -> str:
    """A time for people."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def renamed(plans: Mapping[str, GradientPlan], old: str, new: str) -> dict[str, GradientPlan]:
    """Return the same plans for gradients whose names begin with `new` in place of `old`."""
    return {f"{_PREFIX}{new}{name.removeprefix(_PREFIX + old)}": plan for name, plan in plans.items()}


def own_plans(plans: Mapping[str, GradientPlan], prefix: str, names: Sequence[str]) -> dict[str, GradientPlan]:
    """Return the plans of the gradients `names` as a job knows them. They were measured with `prefix` before each."""
    measured = {key: plans[key] for name in names if (key := f"{_PREFIX}{prefix}{name}") in plans}
    return renamed(measured, prefix, "")


def is_way_of_its_own(plans: Mapping[str, GradientPlan]) -> bool:
    """Whether plans of `auto` compress anything; if not, they are what `none` is."""
    return any(plan.codec != "none" for plan in plans.values())


def links_of(plans: Mapping[str, GradientPlan]) -> Links:
    """The rates of links that stand in the plans of `auto`; gradients that were not open to it have none."""

    def rate(costs: list[float]) -> float | None:
        known = [cost for cost in costs if cost > 0]
        return 1 / statistics.median(known) if known else None

    return Links(
        rate([plan.measured_inter_s_per_byte for plan in plans.values()]),
        rate([plan.measured_intra_s_per_byte for plan in plans.values()]),
    )

"""What the figures of one case say about `auto`. Pure.

judge(case, figures)[0].holds      # whether the first auto is as fast as was promised
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.auto.cases import AGAIN, Case

__all__ = [
    "COLUMNS",
    "Judged",
    "gradient_errors",
    "judge",
    "missed",
    "predicted_step",
    "row",
    "spread_of",
    "step_errors",
    "step_s",
]

COLUMNS = ("auto", "stayed", "step", "predicted", "/ none, fp16", "/ candidates", "verdict")

_BESIDE_SPREAD = 0.03  # auto may be so much slower than the best of none and fp16, and the spread of none beside it
_OF_CANDIDATES = 0.10  # auto(X) may be so much slower than the best of its candidates

Figures = Mapping[str, Any]
"""What the worker wrote: `seconds` of each round by label, and `plans` of each `auto` that has settled."""


@dataclass(frozen=True)
class Judged:
    """One `auto` of one case. Times are medians, in seconds; None where there is none."""

    label: str
    stayed: str
    """The way that auto's own comparison says that it keeps; empty if it has not settled."""
    step_s: float | None
    predicted_s: float | None
    against_plain: float | None
    """Its step over that of the faster of `none` and `fp16`."""
    against_candidates: float | None
    """Its step over that of the fastest of what it chooses from."""
    holds: bool


def step_s(figures: Figures, label: str) -> float:
    """The median step. That of `none` is of both contenders that are `none`."""
    seconds = figures["seconds"]
    step: float = statistics.median([*seconds["none"], *seconds[AGAIN]] if label == "none" else seconds[label])
    return step


def spread_of(figures: Figures) -> float:
    """How far `none` is from itself, as a share: noise."""
    one, other = (statistics.median(figures["seconds"][label]) for label in ("none", AGAIN))
    spread: float = max(one, other) / min(one, other) - 1
    return spread


def judge(case: Case, figures: Figures) -> list[Judged]:
    """Each `auto`, in the order of the contenders."""
    return [_judged(case, figures, label) for label in case.contenders() if label.startswith("auto")]


def missed(case: Case) -> list[Judged]:
    """Each `auto` of a case that could not be measured."""
    autos = [label for label in case.contenders() if label.startswith("auto")]
    return [Judged(label, "", None, None, None, None, holds=False) for label in autos]


def _judged(case: Case, figures: Figures, label: str) -> Judged:
    if label not in figures["plans"]:
        return Judged(label, "", None, None, None, None, holds=False)
    plans = figures["plans"][label]
    step = step_s(figures, label)
    plain = step / min(step_s(figures, name) for name in ("none", "fp16"))
    candidates = step / min(step_s(figures, name) for name in case.candidates(label))
    holds = candidates <= 1 + _OF_CANDIDATES
    if label == "auto":
        holds = holds and plain <= 1 + spread_of(figures) + _BESIDE_SPREAD
    return Judged(label, _stayed(plans), step, predicted_step(plans), plain, candidates, holds)


def _reasons(plans: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    return (plan["reason"] for plan in plans)


def _stayed(plans: Sequence[Mapping[str, Any]]) -> str:
    """As the reason of a plan that was compared says it."""
    found = (re.search(r": ([^:;]+) stays", reason) for reason in _reasons(plans))
    return next((match[1] for match in found if match), "the only one")


def predicted_step(plans: Sequence[Mapping[str, Any]]) -> float | None:
    """In seconds, from the reason of a plan."""
    found = (re.search(r"the step ([\d.e+-]+) ms", reason) for reason in _reasons(plans))
    return next((float(match[1]) / 1e3 for match in found if match), None)


def gradient_errors(figures: Figures) -> list[float]:
    """By how much each prediction of one gradient is off what was measured, as a share of that."""
    plans = [plan for of_label in figures["plans"].values() for plan in of_label]
    known = [plan for plan in plans if plan["predicted_s"] > 0 and plan["measured_s"] > 0]
    return [abs(plan["predicted_s"] / plan["measured_s"] - 1) for plan in known]


def step_errors(judged: Iterable[Judged]) -> list[float]:
    """The same of whole steps."""
    return [abs(one.predicted_s / one.step_s - 1) for one in judged if one.predicted_s and one.step_s]


def row(one: Judged) -> tuple[str, ...]:
    """Cells under `COLUMNS`."""
    if one.step_s is None:
        return one.label, "not settled in time", "", "", "", "", "missed"
    ratios = [f"{ratio:.3f}" for ratio in (one.against_plain, one.against_candidates) if ratio is not None]
    predicted = "" if one.predicted_s is None else f"{1e3 * one.predicted_s:.3g} ms"
    return one.label, one.stayed, f"{1e3 * one.step_s:.4g} ms", predicted, *ratios, "holds" if one.holds else "missed"

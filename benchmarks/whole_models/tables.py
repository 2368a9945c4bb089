"""The tables of the manual, from the figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.whole_models.contenders import AGAIN, ALONE

__all__ = ["of"]

Figures = Mapping[str, Any]


def of(kept: Figures) -> dict[str, str]:
    """The table of each part that was measured."""
    tables = {"saved": _saved, "lists": _by_topology, "routes": _by_topology, "covap": _covap, "held": _held}
    return {what: tables[what](found) for what, found in kept.items() if what in tables}


def _saved(found: Figures) -> str:
    lines = ["| where | way | ms a step | predicted | off by | beside itself |", "|---|---|---|---|---|---|"]
    for rate, one in found.items():
        steps = {label: statistics.median(seconds) for label, seconds in one["seconds"].items()}
        noise = f"{_apart(steps['none'], steps[AGAIN]):.1%}"
        for label, step in steps.items():
            if label == AGAIN:
                continue
            predicted = one["predicted"].get(label)
            cells = [rate, f"{label}, interval {one['interval']}" if label == "covap" else label, f"{1e3 * step:.0f}"]
            cells += [f"{1e3 * predicted:.0f}", f"{predicted / step - 1:+.0%}"] if predicted else ["", ""]
            cells.append(noise if label == "none" else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_topology(found: Figures) -> str:
    lines = ["| where | way | ms a step | simulated | off by |", "|---|---|---|---|---|"]
    for where, one in found.items():
        for label, seconds in one["seconds"].items():
            step, predicted = statistics.median(seconds), one["predicted"].get(label)
            cells = [where, f"`{label}`" if predicted else label, f"{1e3 * step:.0f}"]
            cells += [f"{1e3 * predicted:.0f}", f"{predicted / step - 1:+.0%}"] if predicted else ["", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _covap(found: Figures) -> str:
    lines = [
        "| communication, of the backward pass | interval found | ms without communication | ms a step | not hidden |",
        "|---|---|---|---|---|",
    ]
    for one in found.values():
        for ratio, at in one["ratios"].items():
            steps = {label: statistics.median(seconds) for label, seconds in at["seconds"].items()}
            alone, step = steps[ALONE], steps["covap(none)"]
            cells = [ratio, str(at["interval"]), f"{1e3 * alone:.0f}", f"{1e3 * step:.0f}", f"{step / alone - 1:.1%}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _held(found: Figures) -> str:
    lines = ["| where | ms to hold back 1 MiB | ms to copy 1 MiB |", "|---|---|---|"]
    for where, one in found.items():
        cells = [where, *(f"{1e3 * 2**20 * one[key]:.2f}" for key in ("held_s_per_byte", "copy_s_per_byte"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other) - 1

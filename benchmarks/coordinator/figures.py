"""The figures of this benchmark, and the table of the manual that is made from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from casync.bench.simulate import predict

__all__ = ["COORDINATORS", "FIGURES", "SETS", "simulated", "table"]

FIGURES = Path("docs/figures/coordinator.json")
COORDINATORS = ("local", "global")
SETS = {"400 x 64 KiB": (400, 16 << 10), "12 x 4 MiB": (12, 1 << 20)}
"""Name -> tensors, float32 elements of each."""
_SEEDS = range(1, 6)


def simulated(hosts: int, goodput: float) -> dict[str, dict[str, float]]:
    """Seconds of a step as `casync simulate` has them, by set and coordinator: the median of five seeds.

    `goodput` is what one TCP stream carries, in bytes per second.
    """

    def step(count: int, elements: int, coordinator: str, seed: int) -> float:
        gradients = [(elements, 1)] * count
        return predict(gradients, nodes=hosts, rate=goodput, topology="ps", coordinator=coordinator, seed=seed)[
            "step_s"
        ]

    return {
        name: {kind: statistics.median(step(*tensors, kind, seed) for seed in _SEEDS) for kind in COORDINATORS}
        for name, tensors in SETS.items()
    }


def table(figures: Mapping[str, Any]) -> str:
    """Median seconds of a step with each coordinator, beside what `casync simulate` says."""
    lines = [
        "| gradients | coordinator | measured s | lowest | highest | simulated s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, kinds in figures["seconds"].items():
        for kind in COORDINATORS:
            times = kinds[kind]
            cells = [name, kind]
            cells += [f"{value:.3f}" for value in (statistics.median(times), min(times), max(times))]
            cells.append(f"{figures['simulated'][name][kind]:.3f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)

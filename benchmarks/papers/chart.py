"""The charts of the papers' figures: HiPress's figure 9, and COVAP's figure 5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.papers import covap, hipress

__all__ = ["CHARTS", "write"]

COLORS = {
    "uncompressed ring": "#555555",
    "uncompressed PS": "#9a9a9a",
    "CaSync-PS": "#1f6fb4",
    "CaSync-Ring": "#e08a1e",
}


def scaling(found: dict[str, Any]) -> Figure:
    """Scaling efficiency by the number of GPUs, a panel for each model."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = figure.subplots(1, len(hipress.SCALING), sharey=True)
    for axes, (model, systems) in zip(panels, hipress.SCALING.items(), strict=True):
        for system in systems:
            points = [hipress.scaling(found, model, system.name, gpus) for gpus in hipress.GPUS]
            axes.plot(
                range(len(points)), points, marker="o", label=system.name, color=COLORS[system.name.split(",")[0]]
            )
        axes.set_xticks(range(len(hipress.GPUS)), [str(gpus) for gpus in hipress.GPUS])
        axes.set_title(model)
        axes.set_xlabel("GPUs")
        axes.set_ylim(0, 1.05)
        axes.legend(frameon=False, fontsize="x-small", loc="lower left")
    panels[0].set_ylabel("scaling efficiency, simulated")
    return figure


def intervals(found: dict[str, Any]) -> Figure:
    """Speedup by the interval, a line for each model."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for model in covap.TABLE_1:
        speedups = covap.speedups(found, model)
        axes.plot(list(speedups), list(speedups.values()), marker="o", label=model)
    axes.axhline(covap.GPUS, color="#999999", linestyle=":", label="linear")
    axes.set_xlabel("interval")
    axes.set_ylabel(f"speedup on {covap.GPUS} GPUs, simulated")
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure


CHARTS: dict[str, tuple[str, Callable[[dict[str, Any]], Figure]]] = {
    "hipress": ("hipress_scaling.svg", scaling),
    "covap": ("covap_interval.svg", intervals),
}
"""By paper: the file, and what draws it."""


def write(paper: str, found: dict[str, Any], folder: Path) -> None:
    """Draw the chart of a paper, if it has one, into a folder."""
    if paper not in CHARTS:
        return
    file, draw = CHARTS[paper]
    with matplotlib.rc_context({"svg.hashsalt": "casync", "svg.fonttype": "none", "font.family": "sans-serif"}):
        draw(found).savefig(folder / file, metadata={"Date": None, "Creator": None})

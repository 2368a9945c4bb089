"""Draws composed times: a panel for each link, and a bar for each way."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.fidelity.methods import BASELINE, METHODS
from benchmarks.time_to_accuracy.composed import Times

__all__ = ["draw"]

BASE, EVERY_STEP, SELDOM = "#555555", "#1f6fb4", "#e08a1e"


def draw(times: Times, within: float, path: Path) -> None:
    """Write the chart. Ways that do not come to the loss have no bar."""
    names = list(dict.fromkeys(name for found in times.values() for name in found))
    figure = Figure(figsize=(9, 0.34 * len(names) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
    for panel, (link, found) in zip(panels, times.items(), strict=True):
        _draw_link(panel, link, {name: found[name].total if name in found else None for name in names})
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.suptitle(
        f"Hours until the loss is within {100 * within:g} % of 16-bit gradients' last one", x=0.01, ha="left"
    )
    note = "Composed: steps of a small transformer's training, times seconds of a step on four emulated hosts."
    figure.supxlabel(note, fontsize="x-small", color="#555555")
    with rc_context({"svg.hashsalt": "casync", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None} if path.suffix == ".svg" else None)


def _draw_link(panel: Axes, link: str, seconds: dict[str, float | None]) -> None:
    rate, _, numel = link.partition(", ")
    words = rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
    panel.set_title(f"{words}, {numel} numbers", loc="left", fontsize="medium")
    longest = max(one for one in seconds.values() if one is not None) / 3600
    for place, (name, one) in enumerate(seconds.items()):
        if one is None:
            panel.annotate(" not within 1,600 steps", (0, place), va="center", fontsize="x-small", color="#777777")
            continue
        color = SELDOM if METHODS[name].every else BASE if name == BASELINE or METHODS[name].hook else EVERY_STEP
        panel.barh(place, one / 3600, 0.7, color=color)
        panel.annotate(f" {one / 3600:.2f}", (one / 3600, place), va="center", fontsize="x-small")
    panel.set_xlim(0, 1.15 * longest)
    panel.spines[["top", "right"]].set_visible(False)

"""Draws the chart of the README: the time of a step against the rate of the links.

    python -m benchmarks.step_time.chart

Reads docs/figures/step_time_rates.json (rates.py) and writes docs/figures/step_time.svg, which says from which file it
was drawn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.machine import in_words
from benchmarks.step_time.limits import CONTENDERS, POWERSGD, Point, drawn, points, source_note
from benchmarks.step_time.rates import FIGURES
from casync.bench.reference_models import MODELS, mebibytes

PICTURE = Path("docs/figures/step_time.svg")
STYLES = {
    "ddp": ("#555555", "o"),
    "ddp+fp16": ("#9a9a9a", "s"),
    POWERSGD: ("#8a4fb0", "v"),
    "casync:terngrad(bits=2)": ("#e08a1e", "^"),
    "casync:onebit": ("#1f6fb4", "D"),
}
"""What is drawn; the uncompressed and 16-bit lines of CaSync lie on DDP's."""


def rate_in_words(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e9:g} Gbit/s" if bits_per_second >= 1e9 else f"{bits_per_second / 1e6:g} Mbit/s"


def seconds_in_words(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:g} ms"


def draw(sweep: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    found = list(points(sweep))
    lines = {contender: drawn([point for point in found if point.contender == contender]) for contender in STYLES}
    for contender, line in lines.items():
        draw_line(axes, contender, line)
    size = f"{mebibytes(MODELS[sweep['model']]()):.0f} MiB"
    axes.set_title(f"Synchronising {sweep['model']} ({size} of gradients) on {sweep['hosts']} hosts", loc="left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates = sorted({point.bits_per_second for line in lines.values() for point in line})
    axes.set_xticks(rates, [rate_in_words(rate) for rate in rates])
    axes.set_xlim(rates[0] / 1.3, rates[-1] * 1.3)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_in_words(seconds)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("rate of each host's link")
    axes.set_ylabel("time of a step")
    axes.grid(which="major", color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.supxlabel(footnote(sweep, found, rates), fontsize="x-small", color="#555555")
    return figure


def footnote(sweep: dict[str, Any], found: list[Point], rates: list[float]) -> str:
    cores = f"the {sweep['machine']['cores']} cores that all hosts share"
    beyond = sorted({point.bits_per_second for point in found} - set(rates))
    text = f"A line ends where {cores} hold the step back, and no longer the link."
    if beyond:
        text += f" They do in all lines at {', '.join(map(rate_in_words, beyond))}."
    return (
        f"{text}\nThe backward pass only writes gradients. Medians of {sweep['rounds']} rounds.\n"
        f"{in_words(sweep['machine'])}."
    )


def draw_line(axes: Axes, contender: str, line: list[Point]) -> None:
    color, marker = STYLES[contender]
    label = CONTENDERS[contender]
    if not line:
        label += " (cores are the limit at every rate)"
    rates, seconds = [point.bits_per_second for point in line], [point.step_s for point in line]
    axes.plot(rates, seconds, color=color, marker=marker, label=label)
    for rate, value in zip(rates, seconds, strict=True):
        axes.annotate(
            f"{value:.2f}", (rate, value), (4, 5), textcoords="offset points", fontsize="x-small", color=color
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_time.chart", description=__doc__)
    parser.add_argument("--json", type=Path, default=FIGURES)
    parser.add_argument("--svg", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    text = arguments.json.read_text(encoding="utf-8")
    with matplotlib.rc_context({"svg.hashsalt": "casync", "svg.fonttype": "none", "font.family": "sans-serif"}):
        about = {"Date": None, "Creator": None, "Description": source_note(text)}
        draw(json.loads(text)).savefig(arguments.svg, metadata=about)
    print(f"chart: {arguments.svg}")


if __name__ == "__main__":
    main()

"""The outcome of `casync bench` as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from casync.bench.ways import COLUMNS, Measured, Way, best, rows, seconds_text, verdict
from casync.planner.show import summary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_json", "print_table", "recommended", "step_times", "title"]


def step_times(measured: Measured) -> dict[str, float]:
    """Seconds of a step by way."""
    return {name: way.step_s for name, way in measured.ways.items()}


def recommended(measured: Measured) -> Way:
    """The figures of the way that the verdict names."""
    return measured.ways[best(step_times(measured))]


def title(model: str, shapes: Mapping[str, tuple[int, ...]], measured: Measured, backward_s: float) -> str:
    """What was measured: the model, the ranks, and what a step is."""
    hosts = f"{measured.hosts} hosts" if measured.hosts > 1 else "one host"
    step = f"a backward pass of {seconds_text(backward_s)}" if backward_s else "synchronisation alone"
    return (
        f"{model}: {len(shapes)} gradients, {_size(shapes) / 2**20:.1f} MiB, {measured.ranks} ranks on {hosts}. "
        f"A step is {step}{' with synchronisation' if backward_s else ''}"
    )


def print_table(console: Console, heading: str, measured: Measured) -> None:
    """The table, what `auto` measured, the plan, and the answer in the last line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(heading), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == COLUMNS[0] else "right", no_wrap=True)
    for row in rows(measured.ways):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    rates = _rates(measured)
    if rates:
        console.print(f"Links: {', '.join(rates)}.", markup=False)
    console.print(measured.comparison or "auto: no time to compare", markup=False)
    console.print(f"Plan: {summary(recommended(measured).plans)}.", markup=False)
    console.print(verdict(step_times(measured)), markup=False, style="bold")


def as_json(model: str, shapes: Mapping[str, tuple[int, ...]], measured: Measured, backward_s: float) -> str:
    """The same as one object on one line. Times in seconds, rates in bytes per second."""
    ways = {
        name: {"step_s": way.step_s, "steps": way.steps, "sent_bytes": way.sent_bytes, "codec_s": way.codec_s}
        for name, way in measured.ways.items()
    }
    times = step_times(measured)
    return json.dumps(
        {
            "model": model,
            "gradients": len(shapes),
            "gradient_bytes": _size(shapes),
            "ranks": measured.ranks,
            "hosts": measured.hosts,
            "backward_s": backward_s,
            "ways": ways,
            "link_between_hosts": measured.links.between_hosts,
            "link_inside_host": measured.links.inside_host,
            "auto": measured.comparison,
            "plan": summary(recommended(measured).plans),
            "recommended": best(times),
            "verdict": verdict(times),
        }
    )


def _rates(measured: Measured) -> list[str]:
    found = {"between hosts": measured.links.between_hosts, "inside a host": measured.links.inside_host}
    return [f"{rate * 8 / 1e9:.3g} Gbit/s {where}" for where, rate in found.items() if rate is not None]


def _size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return 4 * sum(math.prod(shape) for shape in shapes.values())

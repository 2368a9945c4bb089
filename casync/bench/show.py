"""The outcome of `casync bench` as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from casync.bench import interval
from casync.bench.interval import Sync, advice
from casync.bench.ways import COLUMNS, Measured, Way, best, gradient_bytes, rows, seconds_text, verdict
from casync.observe.step_profile import Observation
from casync.plan.show import summary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_json", "print_intervals", "print_table", "recommended", "step_times", "syncs", "title"]

_ALONE = "synchronisation alone"


def step_times(measured: Measured) -> dict[str, float]:
    """Return the seconds of a step, by way."""
    return {name: way.step_s for name, way in measured.ways.items()}


def recommended(measured: Measured) -> Way:
    """Return the figures of the way that the verdict names."""
    return measured.ways[best(step_times(measured))]


def title(model: str, step: Observation, measured: Measured) -> str:
    """Say what was measured: the model, the ranks, and what a step is."""
    hosts = f"{measured.hosts} hosts" if measured.hosts > 1 else "one host"
    size = gradient_bytes(step) / 2**20
    return (
        f"{model}: {len(step.gradients)} gradients, {size:.1f} MiB, {measured.ranks} ranks on {hosts}. "
        f"A step is {_step(step.computes_s, step.gradients[-1].ready_s)}"
    )


def _step(computes_s: float, backward_s: float) -> str:
    if computes_s <= backward_s:
        return f"a backward pass of {seconds_text(backward_s)} with synchronisation" if backward_s else _ALONE
    over = f"over the last {seconds_text(backward_s)} of which" if backward_s else "at the end of which"
    return f"{seconds_text(computes_s)} of computing, {over} the gradients become ready, with synchronisation"


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


def syncs(step: Observation, measured: Measured) -> dict[str, Sync]:
    """Return what synchronisation takes by way, where it was measured alone too. `auto` is in it as one of the ways."""
    compute_s = _compute_s(step)
    return {
        name: Sync(way.alone_s, max(way.step_s, compute_s))
        for name, way in measured.ways.items()
        if way.alone_s is not None
    }


def _compute_s(step: Observation) -> float:
    return max(step.computes_s, step.gradients[-1].ready_s)


def print_intervals(console: Console, step: Observation, measured: Measured, wished: float) -> None:
    """Print how often to send, for each way and in one sentence."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"How often to send, to compute for {wished:g} of the time"), title_justify="left")
    for column in interval.COLUMNS:
        table.add_column(column, justify="left" if column == interval.COLUMNS[0] else "right", no_wrap=True)
    for row in interval.rows(syncs(step, measured), _compute_s(step), wished):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print(advice(syncs(step, measured), _compute_s(step), wished), markup=False, style="bold")


def as_json(model: str, step: Observation, measured: Measured, wished: float | None = None) -> str:
    """Return the same as one JSON object on one line. Times in seconds, rates in bytes per second. `wished`: the part
    of the time that a rank is to compute; then it says also how often to send.
    """
    often: dict[str, Any] = {}
    if wished is not None:
        compute_s = _compute_s(step)
        often["utilisation"] = wished
        often["intervals"] = {
            name: {
                "round_s": sync.round_s,
                "waiting": asdict(interval.waiting(compute_s, sync.round_s, wished)),
                "streaming": asdict(interval.streaming(compute_s, sync.round_s)),
            }
            for name, sync in syncs(step, measured).items()
        }
        often["advice"] = advice(syncs(step, measured), compute_s, wished)
    ways = {
        name: {"step_s": way.step_s, "steps": way.steps, "sent_bytes": way.sent_bytes, "codec_s": way.codec_s}
        for name, way in measured.ways.items()
    }
    times = step_times(measured)
    return json.dumps(
        {
            "model": model,
            "gradients": len(step.gradients),
            "gradient_bytes": gradient_bytes(step),
            "ranks": measured.ranks,
            "hosts": measured.hosts,
            "backward_s": step.gradients[-1].ready_s,
            "computes_s": step.computes_s,
            "ways": ways,
            "link_between_hosts": measured.links.between_hosts,
            "link_inside_host": measured.links.inside_host,
            "auto": measured.comparison,
            "plan": summary(recommended(measured).plans),
            "recommended": best(times),
            "verdict": verdict(times),
            **often,
        }
    )


def _rates(measured: Measured) -> list[str]:
    found = {"between hosts": measured.links.between_hosts, "inside a host": measured.links.inside_host}
    return [f"{rate * 8 / 1e9:.3g} Gbit/s {where}" for where, rate in found.items() if rate is not None]

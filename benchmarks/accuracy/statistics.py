"""From the figures of several seeds to a table: means, 95 % intervals (Student's t), and differences to `none`.

A difference is taken seed by seed: two runs with one seed share first weights and batches, so what these do to the
accuracy drops out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table
from scipy.stats import t as students_t

__all__ = ["Figures", "interval", "manual", "rows", "table"]

Figures = dict[str, list[float]]
"""`accuracy` in percent and `sent_mib` of rank 0, one value for each seed."""

HEADS = ("codec", "accuracy, %", "against `none`, points", "worst seed, %", "MiB sent by rank 0")


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval."""
    deviation = statistics.stdev(samples) / len(samples) ** 0.5
    return statistics.mean(samples), float(students_t.ppf(0.975, len(samples) - 1)) * deviation


def rows(results: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """One row for each codec, as `HEADS`."""
    plain = results["none"]["accuracy"]
    found: list[tuple[str, ...]] = []
    for codec, figures in results.items():
        mean, half = interval(figures["accuracy"])
        against = ""
        if codec != "none":
            difference, spread = interval([a - b for a, b in zip(figures["accuracy"], plain, strict=True)])
            against = f"{difference:+.2f} ± {spread:.2f}"
        sent = statistics.mean(figures["sent_mib"])
        found.append((codec, f"{mean:.2f} ± {half:.2f}", against, f"{min(figures['accuracy']):.2f}", f"{sent:.1f}"))
    return found


def table(results: Mapping[str, Figures]) -> Table:
    """For a terminal."""
    shown = Table(*HEADS)
    for row in rows(results):
        shown.add_row(*row)
    return shown


def manual(results: Mapping[str, Figures]) -> str:
    """For the manual."""
    lines = [HEADS, ("---",) * len(HEADS), *((f"`{codec}`", *rest) for codec, *rest in rows(results))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

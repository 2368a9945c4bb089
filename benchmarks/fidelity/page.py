"""The losses of one task as a table, and its place in a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks.fidelity.methods import BASELINES, GROUPS, METHODS, OPTIMIZERS, baseline_of

__all__ = ["by_optimizer", "compared", "losses_of", "markdown", "table_of", "write", "written"]

Losses = Mapping[str, Mapping[int, float]]
"""By way and seed."""

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""The 97.5 % quantile of Student's distribution, by the number of samples."""


def losses_of(of_task: Mapping[str, Mapping[str, Any]]) -> Losses:
    return {name: {int(seed): one["loss"] for seed, one in runs.items()} for name, runs in of_task.items()}


def compared(losses: Mapping[int, float], baseline: Mapping[int, float]) -> tuple[float, float]:
    """The mean of the relative differences, seed by seed, and the half of its 95 % interval; NaN for one seed."""
    pairs = [losses[seed] / baseline[seed] - 1 for seed in losses if seed in baseline]
    if len(pairs) < 2:
        return (pairs[0] if pairs else math.nan), math.nan
    return statistics.mean(pairs), STUDENT[len(pairs)] * statistics.stdev(pairs) / math.sqrt(len(pairs))


def markdown(losses: Losses, ways: Collection[str]) -> str:
    """A row for each of the ways that was trained."""
    lines = ["| way | seeds | loss | beside bf16 |", "|---|---|---|---|"]
    for name in dict.fromkeys((*map(baseline_of, ways), *ways)):
        if found := losses.get(name):
            beside = _beside(found, losses[baseline_of(name)])
            lines.append(f"| {name} | {len(found)} | {statistics.mean(found.values()):.3f} | {beside} |")
    return "\n".join(lines)


def by_optimizer(losses: Losses) -> str:
    """A row for each codec, and a column for each optimizer: the loss beside that of bf16 with it."""
    lines = [f"| codec | {' | '.join(OPTIMIZERS)} |", "|---" * (1 + len(OPTIMIZERS)) + "|"]
    baselines = [statistics.mean(losses[name].values()) for name in BASELINES]
    lines.append(f"| `bf16` | {' | '.join(f'loss {loss:.3f}' for loss in baselines)} |")
    ways = GROUPS["optimizers"]
    for codec in dict.fromkeys(METHODS[name].codec for name in ways):
        names = [f"{optimizer}, {codec}" for optimizer in OPTIMIZERS]
        cells = [_beside(losses[name], losses[baseline_of(name)]) if name in ways else "refused" for name in names]
        lines.append(f"| `{codec}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of(losses: Losses, group: str) -> str:
    """The table of a group."""
    return by_optimizer(losses) if group == "optimizers" else markdown(losses, GROUPS[group])


def _beside(losses: Mapping[int, float], baseline: Mapping[int, float]) -> str:
    mean, half = compared(losses, baseline)
    return f"{100 * mean:+.1f} %" + ("" if math.isnan(half) else f" ± {100 * half:.1f} %")


def written(text: str, mark: str, table: str) -> str:
    """The page with the table in its place, between two comments that have the mark."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


def write(path: Path, mark: str, table: str) -> None:
    path.write_text(written(path.read_text(encoding="utf-8"), mark, table), encoding="utf-8")

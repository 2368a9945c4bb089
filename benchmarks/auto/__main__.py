"""Whether `compression="auto"` is as fast as the best of its candidates: one table for several models and links.

    python -m benchmarks.auto --models resnet50,small --links 1gbit --minutes 10

Four ranks, each on a netlab host of its own, or all on one host, where they share its cores (`--links host`). On each,
`none`, `fp16`, `auto`, each codec X alone, and `auto` with the candidates `none`, `fp16` and X (`auto(X)`) take turns,
after each `auto` has compared its ways. `none` takes two turns: how far it is from itself is the noise. `auto` must be
at most as slow as the best of `none` and `fp16`, beside the noise and 3 %. It and each `auto(X)` must be within 10 % of
the best of their candidates; those of `auto` are `none`, `fp16` and onebit. The minutes set how many rounds there are.
Needs root (network namespaces). Writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.auto import verdicts
from benchmarks.auto.cases import CODECS, LINKS, MODELS_AND_SMALL, RANKS, Case, cases, share_of
from benchmarks.auto.verdicts import Figures, Judged
from benchmarks.machine import describe
from benchmarks.netlab import Netlab
from benchmarks.step_time import job

_MINUTES = 55.0
_PATIENCE = 3.0  # times its share, and a minute: then a case has failed


def measure(case: Case, seconds: float) -> Figures:
    """One job, in about so many seconds."""
    words = ["--model", case.model, "--link", case.link, "--codecs", ";".join(case.codecs), "--seconds", str(seconds)]
    with Netlab(hosts=case.hosts, rate=None if case.hosts == 1 else case.link) as lab:
        return job.figures_of(lab, RANKS, "benchmarks.auto.worker", words, timeout=60 + _PATIENCE * seconds)


def show(case: Case, figures: Figures, judged: Sequence[Judged], console: Console) -> None:
    where = f"{RANKS} hosts, links of {case.link}"
    if case.hosts == 1:
        where = f"{RANKS} ranks on one host with {len(os.sched_getaffinity(0))} cores"
    rounds = len(figures["seconds"]["none"])
    console.rule(Text(f"{case.model}: {case.gradient_bytes / 2**20:.0f} MiB, {where}, {rounds} rounds"))
    steps = [f"{label} {1e3 * verdicts.step_s(figures, label):.4g} ms" for label in ("none", "fp16", *case.codecs)]
    console.print(f"{', '.join(steps)}; none against itself: {verdicts.spread_of(figures):.1%}", markup=False)
    table = Table()
    for column in verdicts.COLUMNS:
        table.add_column(column)
    for one in judged:
        table.add_row(*(Text(cell) for cell in verdicts.row(one)))
    console.print(table)


def median_of(errors: Sequence[float], what: str) -> str:
    return f"{statistics.median(errors):.0%} over {len(errors)} {what}" if errors else f"no {what} to compare"


def available_memory() -> int:
    """Bytes that processes may still take, the kernel's caches included."""
    words = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    return 1024 * int(words["MemAvailable"].split()[0])


def chosen(text: str, known: Sequence[str]) -> list[str]:
    for name in (names := text.split(",")):
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r}: known are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.auto", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models, links = list(MODELS_AND_SMALL), list(LINKS)
    parser.add_argument("--models", type=lambda text: chosen(text, models), default=models, help=", ".join(models))
    parser.add_argument("--links", type=lambda text: chosen(text, links), default=links, help=", ".join(links))
    parser.add_argument("--codecs", default=";".join(CODECS), help="separated by ';'")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help=f"for all of it ({_MINUTES:g})")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/auto.json"))
    arguments = parser.parse_args()
    codecs = tuple(filter(None, arguments.codecs.split(";")))
    todo = cases(arguments.models, arguments.links, codecs, available_memory())
    if not todo:
        parser.error("vgg19 is measured at 1gbit only")
    console = Console(width=160)
    console.print(f"{len(todo)} jobs, about {arguments.minutes:g} minutes in all")
    end = time.monotonic() + 60 * arguments.minutes
    results, all_judged, gradients = [], [], []
    for number, case in enumerate(todo):
        seconds = share_of(todo[number:], max(0.0, end - time.monotonic()))
        console.print(f"{case.model}, {case.link}: about {seconds:.0f} s")
        try:
            figures = measure(case, seconds)
        except SystemExit as failure:  # the others are measured all the same
            console.print(f"{failure}", markup=False)
            all_judged += verdicts.missed(case)
            continue
        judged = verdicts.judge(case, figures)
        show(case, figures, judged, console)
        all_judged += judged
        gradients += verdicts.gradient_errors(figures)
        results.append({**asdict(case), "figures": figures, "judged": [asdict(one) for one in judged]})
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"machine": describe(), "cases": results}, indent=1))
    console.rule()
    console.print(f"{sum(one.holds for one in all_judged)} of {len(all_judged)} verdicts hold")
    console.print(
        f"median error of what was predicted: {median_of(gradients, 'gradients')}, "
        f"{median_of(verdicts.step_errors(all_judged), 'steps')}"
    )
    console.print(f"figures: {arguments.json}")


if __name__ == "__main__":
    main()

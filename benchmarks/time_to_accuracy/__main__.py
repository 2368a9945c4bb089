"""When training is done, by way and link: steps to a loss, times the seconds of a step.

    python -m benchmarks.time_to_accuracy measure --rate 100mbit --numel 25e6
    python -m benchmarks.time_to_accuracy show
    python -m benchmarks.time_to_accuracy check --rate 10mbit --method "DiLoCo 32" --steps 500

The time is composed. The steps come from `benchmarks.fidelity`, where a small transformer is trained: the first step in
which the mean loss of the seeds is within so much of the last loss under gradients of 16 bits (`--within`). The seconds
of a step are measured here, on four emulated hosts with a model of `--numel` numbers whose step computes for 100 ms by
sleeping (`benchmarks.local_steps`).

`measure` takes all ways that have a curve, goes on where it was ended, and needs root. `show` prints the tables, of all
ways, of a `--group` or of each `--method`. With `--chart FILE` it draws them, and with `--page FILE` it puts the table
of a group into a page. `check` trains the small transformer on the hosts in each `--method` for so many steps, and
prints the seconds of that beside those that are composed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.fidelity import page
from benchmarks.fidelity.methods import BASELINE, GROUPS, METHODS
from benchmarks.fidelity.tasks import TASKS
from benchmarks.netlab import Netlab
from benchmarks.step_time.job import figures_of
from benchmarks.time_to_accuracy.composed import (
    COMPUTE,
    REAL,
    Times,
    in_words,
    links_of,
    markdown,
    times_of,
    words_of,
)

FIDELITY = Path("docs/figures/fidelity.json")
FIGURES = Path("docs/figures/time_to_accuracy.json")
PICTURE = Path("docs/figures/time_to_accuracy.svg")
HOSTS = 4
README, README_LINK = Path("README.md"), "100mbit, 25 M"
MARK = "time to accuracy"  # of the table's place in a page
README_WAYS = (
    "DDP, fp16_compress_hook", "every step, bf16", "every step, int8", "every step, int4", "every step, thc",
    "every step, powersgd(rank=4, start_step=100)", "every step, onebit", "LocalSGD 8", "DiLoCo 32",
    "DiLoCo 32, streaming, onebit",
)  # fmt: skip
"""The README's chart shows these."""
WITHOUT_ROUNDS = "DiLoCo 128"  # of which this many steps have one


def measure(rate: str, numel: float, names: Sequence[str], path: Path) -> None:
    """Measure the seconds of a step of each way at this rate, but for what is in the file already."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    of_link = kept.setdefault(f"{rate}, {numel / 1e6:g} M", {})
    with Netlab(hosts=HOSTS, rate=rate) as lab:
        for name in names:
            if name in of_link:
                continue
            words, steps = words_of(METHODS[name], numel, COMPUTE)
            found = figures_of(lab, HOSTS, "benchmarks.local_steps.worker", words, timeout=900.0)
            of_link[name] = {"seconds": found["slowest"]["seconds"] / steps, "revision": machine.revision()}
            kept["machine"] = machine.describe()
            path.write_text(json.dumps(kept, indent=1))
            print(f"{rate}, {name}: {of_link[name]['seconds']:.3f} s a step", flush=True)


def check(rate: str, names: Sequence[str], steps: int, path: Path) -> None:
    """Measure trainings of so many steps at this rate, and compose their time from the seconds of a step alone."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    numel = sum(parameter.numel() for parameter in TASKS["text"]().model().parameters())
    compute = _seconds_of_training(None, WITHOUT_ROUNDS, 128)
    for name in names:
        words, timed = words_of(METHODS[name], numel, compute)
        with Netlab(hosts=HOSTS, rate=rate) as lab:
            found = figures_of(lab, HOSTS, "benchmarks.local_steps.worker", words, timeout=900.0)
        each = found["slowest"]["seconds"] / timed
        real = steps * _seconds_of_training(rate, name, steps)
        one = {"composed": steps * each, "seconds": real, "compute": steps * compute, "revision": machine.revision()}
        kept.setdefault(REAL, {})[f"{rate}, {numel / 1e6:.2g} M, {name}, {steps} steps"] = one
        path.write_text(json.dumps(kept, indent=1))
        print(
            f"{rate}, {name}, {steps} steps: composed {steps * each:.1f} s, of which computing {steps * compute:.1f} s;"
            f" trained in {real:.1f} s, {real / (steps * each) - 1:+.1%}",
            flush=True,
        )


def _seconds_of_training(rate: str | None, name: str, steps: int) -> float:
    """Return how long a step of a real training takes, without the evaluation."""
    words = ["--task=text", f"--method={name}", "--seed=0", f"--steps={steps}"]
    with Netlab(hosts=HOSTS, rate=rate) as lab:
        found = figures_of(lab, HOSTS, "benchmarks.fidelity.worker", words, timeout=7200.0)
    return float(found["seconds"] - found["evaluating"]) / float(found["steps"])


def show(times: Times, within: float) -> None:
    """Print a table for each link."""
    console = Console(width=120)
    for link, found in times.items():
        whole = found[BASELINE].total
        assert whole is not None
        unit, word = (3600, "hours") if whole > 7200 else (1, "s")
        table = Table(title=f"{link} numbers, {HOSTS} hosts: composed time to {100 * within:g} % of {BASELINE}")
        for column in ("way", "steps", "s a step", word, "of bf16's"):
            table.add_column(column, justify="left" if column == "way" else "right")
        for name, one in found.items():
            if one.total is None:
                table.add_row(name, "never", f"{one.seconds:.3f}", "", "")
            else:
                cells = (
                    f"{one.steps:.0f}",
                    f"{one.seconds:.3f}",
                    f"{one.total / unit:.1f}",
                    f"{one.total / whole:.3f}",
                )
                table.add_row(name, *cells)
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_accuracy", description=__doc__)
    parser.add_argument("what", choices=("measure", "show", "check"))
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--numel", type=float, default=25e6, help="numbers of the model")
    parser.add_argument("--method", action="append", choices=METHODS, metavar="WAY", help="only this; may be repeated")
    parser.add_argument("--group", choices=("rounds", "codecs", "covap"), help="show only these ways, and the baseline")
    parser.add_argument("--steps", type=int, default=500, help="of a real run")
    parser.add_argument("--within", type=float, default=0.01, help="how near to the baseline's last loss is there")
    parser.add_argument("--json", type=Path, default=FIGURES)
    parser.add_argument("--chart", type=Path, help="draw the times into this file")
    parser.add_argument("--page", type=Path, help="put the table of the group there")
    parser.add_argument("--readme", action="store_true", help="put what the README says there, and draw its chart")
    given = parser.parse_args()
    if given.page and not given.group:
        parser.error("--page needs the --group whose table goes there")
    curves = json.loads(FIDELITY.read_text())["text"]
    if given.what == "measure":
        names = given.method or [name for name in curves if METHODS[name].lr == 1.0]
        measure(given.rate, given.numel, names, given.json)
    elif given.what == "check":
        check(given.rate, given.method or [BASELINE], given.steps, given.json)
    else:
        names = [BASELINE, *(given.method or (GROUPS[given.group] if given.group else METHODS))]
        links = links_of(json.loads(given.json.read_text()))
        times = times_of(curves, links, given.within, names)
        show(times, given.within)
        if given.chart or given.readme:
            from benchmarks.time_to_accuracy.chart import draw  # matplotlib is not everywhere
        if given.chart:
            draw(times, given.within, given.chart)
        if given.page:
            page.write(given.page, f"{MARK} {given.group}", markdown(times))
        if given.readme:
            chosen = times_of(curves, links, given.within, README_WAYS)
            draw(chosen, given.within, PICTURE)
            page.write(README, MARK, in_words(chosen, README_LINK, given.within))


if __name__ == "__main__":
    main()

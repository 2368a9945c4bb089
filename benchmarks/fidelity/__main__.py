"""What sending less, or less often, does to training: the loss at equal steps, beside gradients of 16 bits in each.

    python -m benchmarks.fidelity --task text --seeds 5

Four workers on this machine train the same model from the same weights, each with batches of its own. Every way is
compared, seed by seed, with gradients of 16 bits in every step and the same optimizer. A training that is in the file
of figures is not made again, so that the command goes on where it was ended. `--quick` takes fewer steps, for the
command's own sake. Prints a table. `--chart FILE` draws the curves, and `--page FILE` puts the table of a group into a
page.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.fidelity import page
from benchmarks.fidelity.methods import GROUPS, METHODS, baseline_of
from benchmarks.fidelity.tasks import TASKS

FIGURES = Path("docs/figures/fidelity.json")


def run(task: str, method: str, seed: int, steps: int, workers: int) -> dict[str, Any]:
    """One training."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "casync", "run", "-np", str(workers), sys.executable, "-m"]
        command += ["benchmarks.fidelity.worker", "--task", task, "--method", method, "--seed", str(seed)]
        command += ["--steps", str(steps), "--out", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="text")
    parser.add_argument("--group", choices=GROUPS, help="only these ways")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="0: the task's own")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="one seed, 128 steps, nothing is kept")
    parser.add_argument("--json", type=Path, default=FIGURES)
    parser.add_argument("--chart", type=Path, help="draw the curves of the task into this file")
    parser.add_argument("--page", type=Path, help="put the table of the group there, and train nothing")
    given = parser.parse_args()
    if given.page and not given.group:
        parser.error("--page needs the --group whose table goes there")
    kept: dict[str, Any] = json.loads(given.json.read_text()) if given.json.exists() else {}
    if given.quick:
        kept, given.seeds, given.steps = {}, 1, 128
    of_task = kept.setdefault(given.task, {})
    rates = TASKS[given.task]().lr
    methods = given.method or list(GROUPS[given.group] if given.group else [*GROUPS["rounds"], *GROUPS["codecs"]])
    if not given.method:
        methods = [name for name in methods if METHODS[name].optimizer in rates]
    if unknown := {METHODS[name].optimizer for name in methods} - rates.keys():
        parser.error(f"--task {given.task} has no learning rate for {', '.join(sorted(unknown))}: take --task digits")
    methods = list(dict.fromkeys((*map(baseline_of, methods), *methods)))
    if given.page:
        page.write(
            given.page, f"fidelity {given.group} {given.task}", page.table_of(page.losses_of(of_task), given.group)
        )
        return
    for seed in range(given.seeds):
        for method in methods:
            runs = of_task.setdefault(method, {})
            if str(seed) in runs:
                continue
            runs[str(seed)] = run(given.task, method, seed, given.steps, given.workers)
            runs[str(seed)]["revision"] = machine.revision()
            print(
                f"{method}, seed {seed}: loss {runs[str(seed)]['loss']:.4f}, {runs[str(seed)]['seconds']:.0f} s",
                flush=True,
            )
            if not given.quick:
                kept["machine"], kept.setdefault("data", {})[given.task] = machine.describe(), TASKS[given.task]().data
                given.json.write_text(json.dumps(kept, indent=1))
    show(of_task)
    if given.chart:
        draw(of_task, given.chart)


def show(of_task: dict[str, Any]) -> None:
    losses = page.losses_of(of_task)
    table = Table()
    for column in ("way", "seeds", "loss", "beside bf16", "95 %", "sent by rank 0"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, found in losses.items():
        mean, half = page.compared(found, losses.get(baseline_of(name), {}))
        sent = statistics.mean(one["sent_bytes"] for one in of_task[name].values()) / 2**20
        table.add_row(
            name, str(len(found)), f"{statistics.mean(found.values()):.4f}", f"{100 * mean:+.2f} %",
            "" if math.isnan(half) else f"± {100 * half:.2f} %", f"{sent:.1f} MiB",
        )  # fmt: skip
    Console(width=120).print(table)


def draw(of_task: dict[str, Any], path: Path) -> None:
    """The mean curve of each way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, runs in of_task.items():
        curves = [one["curve"] for one in runs.values()]
        steps = [point[0] for point in curves[0]]
        axes.plot(steps, [statistics.mean(curve[i][1] for curve in curves) for i in range(len(steps))], label=name)
    axes.set(xlabel="step", ylabel="loss of the test text")
    axes.legend(fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()

"""Runs one benchmark of an older commit and of this checkout by turns, and compares their figures.

    make bench-beside ARGS="HEAD~1 step_time --models resnet50 --rounds 3 --contenders 'ddp;casync:none'"

The older commit gets a checkout and an environment of its own under build/beside, as a fresh clone would, and each side
runs the benchmark that it has. Prints, for every list of samples in the JSON that both wrote, the medians over all
turns and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

Samples = dict[str, list[float]]
HERE = Path.cwd()


def checkout(commit: str) -> Path:
    """A worktree of the commit, made at the first use."""
    sha = subprocess.check_output(["git", "rev-parse", "--short", f"{commit}^{{commit}}"], text=True).strip()
    folder = HERE / "build" / "beside" / sha
    if not folder.exists():
        subprocess.run(["git", "worktree", "add", "--quiet", "--force", "--detach", str(folder), sha], check=True)
    return folder


def run(folder: Path, benchmark: str, arguments: list[str]) -> Samples:
    # Not a part of the make that may have started this.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", f"bench-{benchmark}", f"ARGS={shlex.join(arguments)}"]
    subprocess.run(command, cwd=folder, env=env, check=True)
    return dict(samples_in(json.loads((folder / "benchmarks" / "results" / f"{benchmark}.json").read_text())))


def samples_in(figures: object, path: str = "") -> Iterator[tuple[str, list[float]]]:
    if isinstance(figures, dict):
        for name, value in figures.items():
            yield from samples_in(value, f"{path}, {name}" if path else name)
    elif isinstance(figures, list) and figures and all(isinstance(value, float) for value in figures):
        yield path, figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("commit", help="the older side")
    parser.add_argument("benchmark")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the benchmark's own")
    given = parser.parse_args()
    sides = {given.commit: checkout(given.commit), "here": HERE}
    gathered: dict[str, Samples] = {side: defaultdict(list) for side in sides}
    for _ in range(given.turns):
        for side, folder in sides.items():
            for name, samples in run(folder, given.benchmark, given.arguments).items():
                gathered[side][name] += samples

    table = Table(title=f"{given.benchmark}: medians over {given.turns} turns")
    for column in ("figure", *sides, "here / older"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    older, here = gathered.values()
    for name in older:
        if name in here:
            before, after = statistics.median(older[name]), statistics.median(here[name])
            table.add_row(name, f"{before:.4g}", f"{after:.4g}", f"{after / before:.3f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

"""What small tensors cost: 200 asynchronous allreduces of 4 KiB, and one alone, from Python, on one host.

    python -m benchmarks.small_tensors

Beside them, in processes of their own that take turns with ours, MPI_Allreduce of the same bytes (mpi4py). Prints
medians, the 99th percentile, and the ratios of both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ranks import result_of

WORKER = "benchmarks.small_tensors.worker"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_tensors", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/small_tensors.json"))
    arguments = parser.parse_args()
    samples: dict[str, dict[str, list[float]]] = {kind: {"many": [], "one": []} for kind in ("mpi", "casync")}
    for _ in range(arguments.rounds):
        for kind, cases in samples.items():
            result = result_of(arguments.ranks, WORKER, kind, timeout=arguments.timeout)
            for case, seconds in result.items():
                cases[case] += seconds
    table = Table(title=f"{arguments.ranks} ranks on one host, cached names, in place")
    for column in ("case", "CaSync ms", "p99", "MPI_Allreduce ms", "p99", "ratio of medians", "ratio of p99"):
        table.add_column(column, justify="left" if column == "case" else "right")
    titles = {
        "many": "200 x 4 KiB asynchronous / one MPI_Allreduce of 800 KiB",
        "one": "one 4 KiB / MPI_Allreduce of 4 KiB",
    }
    for case, title in titles.items():
        ours, theirs = (np.array(samples[kind][case]) * 1e3 for kind in ("casync", "mpi"))
        medians = np.median(ours), np.median(theirs)
        tails = np.percentile(ours, 99), np.percentile(theirs, 99)
        table.add_row(
            title,
            f"{medians[0]:.3f}",
            f"{tails[0]:.3f}",
            f"{medians[1]:.3f}",
            f"{tails[1]:.3f}",
            f"{medians[0] / medians[1]:.2f}",
            f"{tails[0] / tails[1]:.2f}",
        )
    Console(width=140).print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(samples))


if __name__ == "__main__":
    main()

"""Times a step of uncompressed PS on netlab hosts with each coordinator, by turns, beside what `casync simulate` says.

    python -m benchmarks.coordinator

Every turn starts one job for each coordinator and each set of tensors, so that what else the machine does meets all of
them. Prints the median seconds of a step, and writes all samples as JSON, with a description of the machine. Needs root
(network namespaces).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.coordinator.figures import COORDINATORS, FIGURES, SETS, simulated
from benchmarks.netlab import Netlab

__all__ = ["main"]


def measure(lab: Netlab, hosts: int, coordinator: str, tensors: tuple[int, int], steps: int) -> dict[str, Any]:
    """One job: seconds of each step, and the messages that rank 0 sent in all."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        argv = [sys.executable, "-m", "benchmarks.coordinator.worker", *map(str, (*tensors, steps)), str(out)]
        env = {"CASYNC_COORDINATOR": coordinator, "CASYNC_TOPOLOGY": "ps"}
        result = lab.run(hosts, argv, env, timeout=120)
        if result.status != 0 or not out.exists():
            raise SystemExit(f"coordinator: status {result.status}\n{result.stdout}\n{result.stderr}")
        figures: dict[str, Any] = json.loads(out.read_text())
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path, default=FIGURES)
    given = parser.parse_args()
    seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in COORDINATORS} for name in SETS}
    messages: dict[str, dict[str, int]] = {name: {} for name in SETS}
    with Netlab(given.hosts, given.rate) as lab:
        goodput = lab.goodput() / 8
        for _ in range(given.turns):
            for name, tensors in SETS.items():
                for kind in COORDINATORS:
                    found = measure(lab, given.hosts, kind, tensors, given.steps)
                    seconds[name][kind] += found["seconds"]
                    messages[name][kind] = found["messages"]
    predictions = simulated(given.hosts, goodput)
    table = Table(title=f"PS on {given.hosts} hosts, {given.rate} links, one TCP stream {goodput * 8e-6:.0f} Mbit/s")
    for column in ("tensors", "coordinator", "median s", "min", "max", "simulated s", "ratio", "messages"):
        table.add_column(column, justify="left" if column in ("tensors", "coordinator") else "right")
    for name, kinds in seconds.items():
        for kind, times in kinds.items():
            median = statistics.median(times)
            predicted = predictions[name][kind]
            texts = [f"{value:.3f}" for value in (median, min(times), max(times), predicted, predicted / median)]
            table.add_row(name, kind, *texts, str(messages[name][kind]))
    Console(width=140).print(table)
    figures = {
        "hosts": given.hosts,
        "rate": given.rate,
        "goodput": goodput,
        "seconds": seconds,
        "simulated": predictions,
        "machine": machine.describe(),
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

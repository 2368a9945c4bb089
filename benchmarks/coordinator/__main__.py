"""Times a step of uncompressed PS on netlab hosts with each coordinator, by turns, beside what `casync simulate` says.

    python -m benchmarks.coordinator

There are two networks: one that loses nothing, and one whose switch has little memory, so that it loses packets where
many senders meet. Every turn starts one job for each coordinator and each set of tensors, so that what else the machine
does meets all of them. Prints the median seconds of a step, and writes all samples as JSON, with a description of the
machine. Needs root (network namespaces).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks import machine
from benchmarks.coordinator.figures import COORDINATORS, FIGURES, NETWORKS, Network, Tensors, simulated, table
from benchmarks.coordinator.worker import STEPS_BEFORE
from benchmarks.netlab import Netlab

__all__ = ["main"]


def measure(lab: Netlab, hosts: int, coordinator: str, tensors: Tensors, steps: int) -> list[float]:
    """One job: seconds of each step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        argv = [sys.executable, "-m", "benchmarks.coordinator.worker"]
        argv += [*map(str, (tensors.count, tensors.elements, steps)), str(out)]
        env = {"CASYNC_COORDINATOR": coordinator, "CASYNC_TOPOLOGY": tensors.topology}
        result = lab.run(hosts, argv, env, timeout=300)
        if result.status != 0 or not out.exists():
            raise SystemExit(f"coordinator: status {result.status}\n{result.stdout}\n{result.stderr}")
        seconds: list[float] = json.loads(out.read_text())
        return seconds


def measured(network: Network, turns: int, steps: int) -> dict[str, Any]:
    """Measure one network: the seconds of all steps, and how many packets a step loses."""
    seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in COORDINATORS} for name in network.sets}
    lost = {name: dict.fromkeys(COORDINATORS, 0.0) for name in network.sets}
    with Netlab(network.hosts, network.rate, buffer_kib=network.buffer_kib) as lab:
        goodput = lab.goodput() / 8
        for _ in range(turns):
            for name, tensors in network.sets.items():
                for kind in COORDINATORS:
                    before = lab.lost_packets()
                    seconds[name][kind] += measure(lab, network.hosts, kind, tensors, steps)
                    lost[name][kind] += (lab.lost_packets() - before) / turns / (steps + STEPS_BEFORE)
    return {"goodput": goodput, "seconds": seconds, "lost": lost, "simulated": simulated(network, goodput)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path, default=FIGURES)
    given = parser.parse_args()
    found = {name: measured(network, given.turns, given.steps) for name, network in NETWORKS.items()}
    figures = {"machine": machine.describe(), "revision": machine.revision(), "networks": found}
    Console(width=140).print(Markdown(table(figures)))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

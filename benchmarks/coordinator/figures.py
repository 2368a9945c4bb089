"""The figures of this benchmark, and the table of the manual that is made from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casync.bench.simulate import predict

__all__ = ["COORDINATORS", "FIGURES", "NETWORKS", "Network", "Tensors", "simulated", "table"]

FIGURES = Path("docs/figures/coordinator.json")
COORDINATORS = ("local", "global")
_SEEDS = range(1, 6)


@dataclass(frozen=True)
class Tensors:
    """A step reduces so many tensors of float32, by this topology."""

    count: int
    elements: int
    topology: str = "ps"


@dataclass(frozen=True)
class Network:
    """Hosts on one switch. It keeps `buffer_kib` for each host, and loses what is more; 0: nothing is lost."""

    hosts: int
    rate: str
    buffer_kib: int
    sets: Mapping[str, Tensors]


NETWORKS = {
    "4 hosts, 1 Gbit/s": Network(
        4, "1gbit", 0, {"400 x 64 KiB": Tensors(400, 16 << 10), "12 x 4 MiB": Tensors(12, 1 << 20)}
    ),
    "8 hosts, 200 Mbit/s, 64 KiB a port": Network(
        8, "200mbit", 64,
        {
            "100 x 64 KiB": Tensors(100, 16 << 10), "4 x 4 MiB": Tensors(4, 1 << 20),
            "2 x 4 MiB, an owner each": Tensors(2, 1 << 20, "phases(flat reduce, flat broadcast)"),
        },
    ),
}  # fmt: skip
"""By name, what is measured there."""


def simulated(network: Network, goodput: float) -> dict[str, dict[str, float]]:
    """Seconds of a step as `casync simulate` has them, by set and coordinator: the median of five seeds. A network that
    loses packets is not simulated.

    `goodput` is what one TCP stream carries, in bytes per second.
    """

    def step(tensors: Tensors, coordinator: str, seed: int) -> float:
        seconds: float = predict(
            [(tensors.elements, 1)] * tensors.count, nodes=network.hosts, rate=goodput,
            topology=tensors.topology, coordinator=coordinator, seed=seed,
        )["step_s"]  # fmt: skip
        return seconds

    if network.buffer_kib:
        return {}
    return {
        name: {kind: statistics.median(step(tensors, kind, seed) for seed in _SEEDS) for kind in COORDINATORS}
        for name, tensors in network.sets.items()
    }


def table(figures: Mapping[str, Any]) -> str:
    """Median seconds of a step with each coordinator, beside what `casync simulate` says, and the packets that were
    lost in a step.
    """
    lines = [
        "| network | gradients | coordinator | measured s | lowest | highest | simulated s | packets lost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for network, found in figures["networks"].items():
        for name, kinds in found["seconds"].items():
            for kind in COORDINATORS:
                times = kinds[kind]
                cells = [network, name, kind]
                cells += [f"{value:.3f}" for value in (statistics.median(times), min(times), max(times))]
                cells.append(f"{found['simulated'][name][kind]:.3f}" if found["simulated"] else "")
                cells.append(f"{found['lost'][name][kind]:.0f}")
                lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)

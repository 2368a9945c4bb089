"""ByteComp: tables 5 and 6 and figure 13, by CaSync's planner."""

from __future__ import annotations

import math
import time
from typing import Any

from benchmarks import machine
from benchmarks.papers.table import milliseconds, table
from casync import _core
from casync.bench import cluster
from casync.bench.cluster import Cluster, Link
from casync.bench.reference_models import MODELS

__all__ = ["CLUSTERS", "CODECS", "PRINTED", "markdown", "measure", "plan"]

# Tables 5 and 6: tensors, and milliseconds to decide what to compress and what to offload.
PRINTED = {
    "vgg16": (32, 7, 1),
    "resnet101": (314, 179, 14),
    "ugatit": (148, 84, 1),
    "bert-base": (207, 125, 2),
    "gpt2": (148, 99, 1),
    "lstm": (10, 1, 1),
}
CODECS = ("onebit", "topk(ratio=0.01)", "int8")
CLUSTERS = {found.name: found for found in map(cluster.load, ("bytecomp-nvlink", "bytecomp-pcie"))}
ASSUMED = (
    "latencies of 25 us between hosts and 10 us inside",
    "a codec's call on a device takes 30 us and 0.04 ns a byte to encode, 0.02 ns to decode",
    "on a host 2 us, 0.20 ns and 0.10 ns",
)
FREE = (0.0, 0.0, 0.0, 0.0)


def plan(model: str, machines: Cluster, codec: str, free: bool = False) -> _core.ModelPlan:
    """A model planned for a cluster. `free`: codecs take no time, as in the paper's upper bound (section 4.1)."""
    shapes = MODELS[model]()[::-1]
    total = sum(math.prod(shape) for shape in shapes)
    gradients, made = [], 0
    for shape in shapes:
        made += math.prod(shape)
        ready_s = machines.models[model].backward_s * made / total
        gradients.append((shape[0], math.prod(shape) // shape[0], ready_s))
    assert machines.copy_rate is not None
    return _core.plan_model(
        gradients=gradients,
        host_of=machines.host_of(),
        inter=_link(machines.network),
        intra=_link(machines.inside),
        codecs={codec: FREE if free else machines.costs("host")[codec]},
        device_codecs={codec: FREE if free else machines.costs("device")[codec]},
        copy_s_per_byte=1 / machines.copy_rate,
        processors=machines.processors,
        on_device=True,
        compression=f"auto({codec})",
    )


def _link(link: Link) -> tuple[float, float, float]:
    return link.latency_s, 1 / link.rate, link.message_s


def measure() -> dict[str, Any]:
    """Plan each model for each cluster with each codec."""
    cells = []
    for place, machines in CLUSTERS.items():
        for model in PRINTED:
            for codec in CODECS:
                begun = time.process_time()
                found = plan(model, machines, codec)
                seconds = time.process_time() - begun
                compressed = [way for way in found["ways"] if way["codec"] != "none"]
                cells.append(
                    {
                        "cluster": place,
                        "model": model,
                        "codec": codec,
                        "gradients": len(found["ways"]),
                        "compressed": len(compressed),
                        "on the host": sum(way["on_host"] for way in compressed),
                        "by a list": sum(way["topology"].startswith("phases(") for way in compressed),
                        "search_s": seconds,
                        "bookings": found["bookings"],
                        "none_s": found["uniform"]["none"],
                        "all_s": found["uniform"][codec],
                        "descent_s": found["descent_s"],
                        "step_s": found["step_s"],
                        "bound_s": found["bound_s"],
                        "free_s": plan(model, machines, codec, free=True)["step_s"],
                    }
                )
    return {"revision": machine.revision(), "machine": machine.describe(), "cells": cells}


def markdown(found: dict[str, Any]) -> str:
    """The tables as a page has them."""
    any_cluster = next(iter(CLUSTERS.values()))
    backward = ", ".join(f"{model} {1e3 * any_cluster.models[model].backward_s:.0f} ms" for model in PRINTED)
    lines = [f"Predicted step in ms, with `{CODECS[0]}`. Assumed are:", "", *(f"- {one}" for one in ASSUMED)]
    lines += [f"- backward passes of {backward}", "- of that a part for each element", ""]
    first = [cell for cell in found["cells"] if cell["codec"] == CODECS[0]]
    counts = ("gradients", "compressed", "on the host", "by a list")
    lines += table(
        ("cluster", "model", *counts, "none", "all", "plan", "no plan under"),
        (
            (
                *(cell[name] for name in ("cluster", "model", *counts)),
                *(milliseconds(cell[name]) for name in ("none_s", "all_s", "step_s", "bound_s")),
            )
            for cell in first
        ),
    )
    lines += ["", "Time to decide, on one core, in ms, all of it; ByteComp's tables 5 and 6 print it in two parts.", ""]
    rows = []
    for model, (gradients, select, offload) in PRINTED.items():
        own = [cell for cell in first if cell["model"] == model]
        searches = [f"{1e3 * cell['search_s']:.0f}" for cell in own]
        bookings = ", ".join(f"{cell['bookings'] / 1e6:.1f}" for cell in own)
        rows.append((model, gradients, f"{select} + {offload}", *searches, bookings))
    heads = ("model", "gradients, printed", "printed", "here, NVLink", "here, PCIe", "bookings, in millions")
    lines += table(heads, rows)
    lines += ["", f"Distance to a bound (figure 13), over {', '.join(f'`{codec}`' for codec in CODECS)}:", ""]
    rows = []
    for place in CLUSTERS:
        cells = [cell for cell in found["cells"] if cell["cluster"] == place]
        sides = []
        for bound in ("bound_s", "free_s"):
            distances = sorted(cell["step_s"] / cell[bound] - 1 for cell in cells)
            sides.append(f"{distances[len(distances) // 2]:.1%}, {distances[-1]:.1%}")
        rows.append((place, *sides))
    lines += table(("cluster", "to the bound: median, most", "to free codecs: median, most"), rows)
    return "\n".join(lines)

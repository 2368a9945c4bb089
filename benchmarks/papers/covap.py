"""COVAP: tables I to V by its own equations, and table I and figure 5 by CaSync's simulator.

The equations are applied to the times that the paper prints. The simulator knows them only for the backward pass and
what comes before it, and computes the communication itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from benchmarks.papers.table import POOL_BYTES, assumed, table, wrapped
from casync.bench import cluster
from casync.bench.simulate import gradients_of, predict, scaling_efficiency

__all__ = ["balance", "interval_for", "markdown", "measure"]

MACHINES = cluster.load("covap-alibaba")
GPUS = len(MACHINES.host_of())

# Table I: T_before, T_comp and T_comm in ms; CCR, S_ovlp and S_LS.
TABLE_1 = {
    "resnet101": (55, 135, 280, 2.1, 1.43, 2.47),
    "vgg19": (105, 210, 842, 4.0, 1.22, 3.04),
    "bert-base": (80, 170, 520, 3.1, 1.28, 3.08),
}
# Table II, of VGG-19: T_compress, and by how much T_comm falls, in ms.
TABLE_2 = {
    "Top-k": (1560, 603), "DGC": (25, 747), "Random-k": (200, 653), "FP16": (5, 423), "EFsignSGD": (20, -210),
    "PowerSGD": (20, 753), "Ok-topk": (500, 674),
}  # fmt: skip
# Table III, of ResNet-101: CCR with the codec, S_GC, and S_GC-ovlp.
TABLE_3 = {"Random-k": (1.07, 1.29, 2.05), "FP16": (1.04, 1.42, 2.35)}
# Table V, of VGG-19: elements of each tensor, and ms. Table IV has the layers of the third.
TABLE_5 = (
    (4101096, 16.177), (16781312, 99.205), (107480576, 603.238), (7079424, 36.513), (7669760, 40.743), (555072, 34.218),
)  # fmt: skip
MEDIAN_PRINTED = 5590260
INTERVALS = (1, 2, 3, 4, 5, 6)
# Figure 5: the most speedup, and the ratio at which it is, of VGG-19 and Bert as the text says them.
FIGURE_5 = {"resnet101": "little more beyond 3", "vgg19": "51.51 at 4", "bert-base": "54.55 at 4"}


def interval_for(ratio: float) -> int:
    """The interval of a ratio of communication to computation: rounded up, but not from less than 0.05."""
    return max(1, math.ceil(ratio - 0.05))


def balance(interval: int, shards: Sequence[float]) -> float:
    """The longest step over the mean one, where each shard, by its ms, goes in one of so many steps: the longest ones
    are dealt first, each to the step with the least.
    """
    steps = [0.0] * interval
    for shard in sorted(shards, reverse=True):
        steps[steps.index(min(steps))] += shard
    return max(steps) / statistics.mean(steps)


def shards(interval: int) -> list[float]:
    """Table V's tensors in ms, cut as section III-C says: into as many parts as they have medians, and at most as many
    as there are steps.
    """
    median = statistics.median(elements for elements, _ in TABLE_5)
    cut = []
    for elements, ms in TABLE_5:
        parts = min(interval, max(1, int(elements / median)))
        cut += [ms / parts] * parts
    return cut


def measure() -> dict[str, Any]:
    """Simulate each model's communication alone, and its step by interval. This takes minutes."""
    return {
        "revision": machine.revision(),
        "machine": machine.describe(),
        "communication": [{"model": model, "step_s": step(model, "none", hides=False)} for model in TABLE_1],
        "figure 5": [
            {"model": model, "interval": interval, "step_s": step(model, f"covap(none, interval={interval})")}
            for model in TABLE_1
            for interval in INTERVALS
        ],
    }


def step(model: str, compression: str, *, hides: bool = True) -> float:
    """Seconds from the backward pass's begin until all is synchronised; without `hides` all gradients are ready at
    once.
    """
    backward_s = MACHINES.models[model].backward_s if hides else 0.0
    how: dict[str, Any] = {"cluster": MACHINES, "topology": "ring", "pool_bytes": POOL_BYTES}
    return predict(gradients_of(model), compression=compression, backward_s=backward_s, **how)["step_s"]


def speedup(model: str, step_s: float) -> float:
    """Return the speedup of all devices over one. With linear scaling it is the number of devices."""
    computes = MACHINES.models[model]
    return GPUS * scaling_efficiency(computes.forward_s, computes.backward_s, step_s)


def ratio(found: dict[str, Any], model: str) -> float:
    """Simulated communication to printed computation."""
    (alone,) = (row["step_s"] for row in found["communication"] if row["model"] == model)
    return alone / MACHINES.models[model].backward_s


def speedups(found: dict[str, Any], model: str) -> dict[int, float]:
    """Figure 5 of a model, by interval."""
    return {row["interval"]: speedup(model, row["step_s"]) for row in found["figure 5"] if row["model"] == model}


def markdown(found: dict[str, Any]) -> str:
    """The tables as a page has them."""
    lines = ["Assumed or fitted are, beside what the simulator leaves out ({doc}`simulate`):", "", *assumed(MACHINES)]
    lines += [
        f"- {POOL_BYTES >> 20} MiB on each rank for payloads, and BERT-base in place of a Bert that has 7 % less",
        "",
    ]
    lines += [
        "Table I. Times are printed; speedups follow from equations 2 and 4. VGG-19's S_LS does not: it is 3.67.",
        "",
    ]
    rows: list[tuple[object, ...]] = []
    for model, (before, computes, communicates, ccr, overlap, linear) in TABLE_1.items():
        whole = before + computes + communicates
        rows.append(
            (
                model,
                f"{communicates / computes:.2f} ({ccr})",
                interval_for(communicates / computes),
                f"{whole / (before + max(computes, communicates)):.2f} ({overlap})",
                f"{whole / (before + computes):.2f} ({linear})",
                f"{communicates}",
                f"{1e3 * ratio(found, model) * MACHINES.models[model].backward_s:.0f}",
            )
        )
    heads = ("model", "CCR (printed)", "interval", "S_ovlp (printed)", "S_LS (printed)", "T_comm, printed, ms")
    lines += table((*heads, "T_comm, simulated"), rows)
    before, computes, communicates, *_ = TABLE_1["vgg19"]
    lines += ["", "Table II. A step of VGG-19 in ms by equation 5, nothing overlapped, the fastest first:", ""]
    steps = {scheme: before + computes + extra + communicates - saved for scheme, (extra, saved) in TABLE_2.items()}
    steps["uncompressed"] = before + computes + communicates
    lines += table(("scheme", "step"), ((scheme, steps[scheme]) for scheme in sorted(steps, key=steps.__getitem__)))
    lines += [
        "",
        "Table III. ResNet-101: how long the codec takes follows from S_GC, and S_GC-ovlp from that by equation 6:",
        "",
    ]
    rows = []
    for scheme, (ccr, alone, overlapped) in TABLE_3.items():
        extra, together = table_3(ccr, alone)
        rows.append((scheme, f"{extra:.1f} ms", f"{together:.2f}", overlapped))
    lines += table(("scheme", "codec", "S_GC-ovlp", "printed"), rows)
    median = statistics.median(elements for elements, _ in TABLE_5)
    medians = f"The median is {median:,.0f} elements; {MEDIAN_PRINTED:,} is printed."
    lines += [
        "",
        *wrapped(f"Tables IV and V. The longest step over the mean one, from the printed times. {medians}"),
        "",
    ]
    rows = [
        (interval, f"{balance(interval, [ms for _, ms in TABLE_5]):.2f}", f"{balance(interval, shards(interval)):.2f}")
        for interval in INTERVALS[1:]
    ]
    lines += table(("interval", "tensors", "shards"), rows)
    lines += ["", f"Figure 5. Speedup on {GPUS} GPUs by interval, simulated:", ""]
    rows = []
    for model in TABLE_1:
        by_interval = [f"{value:.1f}" for value in speedups(found, model).values()]
        rows.append((model, f"{ratio(found, model):.2f}", *by_interval, FIGURE_5[model]))
    lines += table(("model", "CCR, simulated", *INTERVALS, "printed"), rows)
    return "\n".join(lines)


def table_3(ccr: float, alone: float) -> tuple[float, float]:
    """Milliseconds of a codec, from its speedup without overlap, and the speedup with it."""
    before, computes, communicates, *_ = TABLE_1["resnet101"]
    whole = before + computes + communicates
    extra = whole / alone - before - computes - ccr * computes
    return extra, whole / (before + ccr * (computes + extra))

"""HiPress: tables 1 and 7 and figures 9, 12, 14 and 15, by CaSync's planner and simulator.

The baselines are an uncompressed ring and an uncompressed parameter server, both CaSync's own: what BytePS, Horovod and
other libraries' codecs cost besides is not simulated.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.papers.table import POOL_BYTES, assumed, milliseconds, table, wrapped
from casync.bench import cluster
from casync.bench.cluster import Cluster, CodecCosts, Compute
from casync.bench.simulate import gradients_of, predict, scaling_efficiency
from casync.bench.units import GBIT

if TYPE_CHECKING:
    from casync._core import Simulation

__all__ = ["markdown", "measure"]

EC2, LOCAL = cluster.load("hipress-ec2"), cluster.load("hipress-local")


@dataclass(frozen=True)
class System:
    """A way to synchronise, with what the paper prints of it on all devices."""

    name: str
    compression: str
    topology: str
    printed: str = ""
    parts_per_host: int | None = None
    """Partitions of each gradient; None: as the planner finds best."""

    def on(self, machines: Cluster, model: str) -> dict[str, float]:
        """A step of a model."""
        partitions = None if self.parts_per_host is None else self.parts_per_host * machines.hosts
        how = {"compression": self.compression, "topology": self.topology, "partitions": partitions}
        return simulated(machines, model, **how)


RING = System("uncompressed ring", "none", "ring")
PS = System("uncompressed PS", "none", "two_level(ps)")

SCALING: dict[str, tuple[System, ...]] = {
    "transformer": (
        dataclasses.replace(RING, printed="0.47"),
        PS,
        System("CaSync-Ring, DGC", "dgc(ratio=0.001)", "two_level(ring)", "up to +101.4 % over both"),
    ),
    "bert-large": (
        dataclasses.replace(PS, printed="0.71", parts_per_host=2),
        System("CaSync-PS, onebit", "onebit", "two_level(ps)", "+32.3 % over PS, +44.1 % over ring"),
    ),
    "vgg19": (
        RING,
        PS,
        System("CaSync-PS, onebit", "onebit", "two_level(ps)", "+110.5 % over PS, +60.4 % over ring"),
        System("CaSync-Ring, onebit", "onebit", "two_level(ring)", "as CaSync-PS"),
    ),
    "resnet50": (
        RING,
        PS,
        System("CaSync-Ring, DGC", "dgc(ratio=0.001)", "two_level(ring)", "up to +20.7 % over both"),
    ),
    "lstm": (RING, PS, System("CaSync-PS, TernGrad", "terngrad(bits=2)", "two_level(ps)", "up to 2.1 x over both")),
}
"""Figure 9, and table 1. BERT-large has no ring, and few partitions uncompressed: with one for each of 128 GPUs the
graphs of its 398 gradients take more than 10 GB.
"""
GPUS = (8, 32, 128)
LOCAL_SCALING: dict[str, tuple[System, ...]] = {
    "vgg19": (
        dataclasses.replace(PS, printed="0.39 (0.90 is 133.1 % more)"),
        System("CaSync-PS, onebit", "onebit", "two_level(ps)", "0.90"),
    ),
    "bert-base": (
        dataclasses.replace(RING, printed="0.70 (0.90 is 28.6 % more)"),
        System("CaSync-Ring, onebit", "onebit", "two_level(ring)", "0.90"),
    ),
}
"""Figure 12's text."""

# Table 7: by route, hosts and MB, whether to compress and K.
TABLE_7 = {
    ("ps", 4): {4: "yes, 2", 16: "yes, 4", 392: "yes, 12"},
    ("ps", 16): {4: "yes, 1", 16: "yes, 6", 392: "yes, 16"},
    ("ring", 4): {4: "yes, 1", 16: "yes, 4", 392: "yes, 4"},
    ("ring", 16): {4: "no, 16", 16: "yes, 5", 392: "yes, 16"},
}

# Figure 12: what each step changes in what a gradient costs that the backward pass does not hide.
ABLATION: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("default: uncompressed", {"compression": "none"}, "", ""),
    ("on-CPU: all compressed, one partition a host", {"codecs_on": "host", "partitions": 16}, "+32.2 %", "not run"),
    ("on-GPU: on the device", {"partitions": 16}, "-41.2 %", "-10.0 %"),
    ("pipelining: four partitions a host", {"partitions": 64}, "-7.8 %", "-10.6 %"),
    ("bulk: a global coordinator", {"partitions": 64, "coordinator": "global"}, "-26.1 %", "-6.6 %"),
    ("SeCoPa: whether and K by the planner", {"compression": "auto(onebit)"}, "-19.9 %", "-7.4 %"),
)
"""On-CPU and on-GPU are compared with the first row, pipelining with on-GPU, and the others with pipelining, since
CaSync's own coordinator sends nothing."""

TBQ = "tbq(tau=0)"
KIB_14 = tuple(32 << doubling for doubling in range(13))
"""Figure 14: 32 KiB to 128 MiB."""
CALLS_US_14 = (5, 20, 50, 100, 200)
"""The codec's call costs so much on the device."""
KS_14 = (1, 2, 4, 8, 16, 32, 64)
RATES_15A = (10, 25, 56, 100)
RATIOS_15B = {
    "two_level(ps)": {"terngrad(bits=2)": "", "terngrad(bits=4)": "-12.8 %", "terngrad(bits=8)": "-23.6 %"},
    "two_level(ring)": {"dgc(ratio=0.001)": "", "dgc(ratio=0.01)": "-6.7 %", "dgc(ratio=0.05)": "-11.3 %"},
}


def simulated(machines: Cluster, model: str, **how: Any) -> dict[str, float]:
    """A step of a model: its seconds and its scaling efficiency."""
    computes = machines.models.get(model, Compute())
    step_s = predict(
        gradients_of(model), cluster=machines, backward_s=computes.backward_s, pool_bytes=POOL_BYTES, **how
    )["step_s"]
    return {"step_s": step_s, "efficiency": scaling_efficiency(computes.forward_s, computes.backward_s, step_s)}


def measure() -> dict[str, Any]:
    """All figures. It takes minutes."""
    return {
        "revision": machine.revision(),
        "machine": machine.describe(),
        "figure 9": [
            {"model": model, "system": system.name, "gpus": gpus} | system.on(of(gpus), model)
            for model, systems in SCALING.items()
            for system in systems
            for gpus in GPUS
        ],
        "local": [
            {"model": model, "system": system.name} | system.on(LOCAL, model)
            for model, systems in LOCAL_SCALING.items()
            for system in systems
        ],
        "table 7": [planned(topology, hosts, mb) for (topology, hosts), cells in TABLE_7.items() for mb in cells],
        "figure 12": ablation("vgg19", "two_level(ps)") + ablation("bert-base", "two_level(ring)"),
        "figure 14": [latency(kib) for kib in KIB_14],
        "figure 14 by call": [{"call_us": call_us, "pays_from_kib": pays_from(call_us)} for call_us in CALLS_US_14],
        "figure 15a": [
            {"gbit": gbit, "compression": compression}
            | simulated(at(gbit), "bert-base", compression=compression, topology="two_level(ps)")
            for gbit in RATES_15A
            for compression in ("none", "onebit")
        ],
        "figure 15b": [
            {"compression": compression} | simulated(LOCAL, "vgg19", compression=compression, topology=topology)
            for topology, ratios in RATIOS_15B.items()
            for compression in ratios
        ],
    }


def of(gpus: int) -> Cluster:
    """So many devices of EC2."""
    return dataclasses.replace(EC2, hosts=gpus // EC2.ranks_per_host)


def at(gbit: float) -> Cluster:
    """The local cluster with other links."""
    return dataclasses.replace(LOCAL, network=dataclasses.replace(LOCAL.network, rate=gbit * GBIT))


def planned(topology: str, hosts: int, mb: int) -> dict[str, Any]:
    """Return the plan that the planner makes for one gradient."""
    machines = dataclasses.replace(EC2, hosts=hosts, ranks_per_host=1)
    found = predict([(mb << 18, 1)], cluster=machines, compression="auto(onebit)", topology=topology)
    (plan,) = found["plans"]
    return {"topology": topology, "hosts": hosts, "mb": mb, "codec": plan["codec"], "K": plan["partitions"]}


def ablation(model: str, topology: str) -> list[dict[str, Any]]:
    """Figure 12 for one model: what the backward pass does not hide."""
    rows = []
    for name, changes, *_ in ABLATION:
        step = simulated(LOCAL, model, **{"compression": "always(onebit)", "topology": topology} | changes)
        rows.append(
            {"model": model, "switch": name, **step, "exposed_s": step["step_s"] - LOCAL.models[model].backward_s}
        )
    return rows


def one_gradient(kib: int, machines: Cluster = LOCAL, **how: Any) -> Simulation:
    """One gradient on 16 hosts with one device each, by PS."""
    alone = dataclasses.replace(machines, ranks_per_host=1)
    return predict([(kib << 8, 1)], cluster=alone, topology="ps", pool_bytes=16 * POOL_BYTES, **how)


def pays_from(call_us: float) -> int:
    """The KiB from which on TBQ is faster than no codec with K = 1, where a call costs so much; 0: none of them."""
    _, encode, _, decode = LOCAL.costs("device")[TBQ]
    costs = CodecCosts(device=(1e-6 * call_us, encode, 1e-6 * call_us, decode))
    machines = dataclasses.replace(LOCAL, codecs={TBQ: costs})
    for kib in KIB_14:
        compressed = one_gradient(kib, machines, compression=f"always({TBQ})", partitions=1)
        if compressed["step_s"] < one_gradient(kib, machines, partitions=1)["step_s"]:
            return kib
    return 0


def latency(kib: int) -> dict[str, Any]:
    """Figure 14 for one size: uncompressed, and with TBQ."""
    by_k = {k: one_gradient(kib, compression=f"always({TBQ})", partitions=k)["step_s"] for k in KS_14}
    chosen = one_gradient(kib, compression=f"always({TBQ})")
    (plan,) = chosen["plans"]
    best = min(by_k, key=lambda k: by_k[k])
    return {
        "kib": kib,
        "none_s": one_gradient(kib, partitions=1)["step_s"],
        "tbq_s": by_k[1],
        "K": plan["partitions"],
        "step_s": chosen["step_s"],
        "predicted_s": plan["predicted_s"],
        "best_K": best,
        "best_s": by_k[best],
    }


def markdown(found: dict[str, Any]) -> str:
    """The tables as a page has them."""
    pool = f"- {POOL_BYTES >> 20} MiB on each rank for payloads"
    lines = [f"Of {EC2.name} these are assumed or fitted:", "", *assumed(EC2), pool, ""]
    lines += [f"Of {LOCAL.name}:", "", *assumed(LOCAL), pool, ""]
    lines += ["Scaling efficiency, simulated: figure 9 and table 1, on 16 x 8 where nothing else is said.", ""]
    rows = []
    for model, systems in SCALING.items():
        for system in systems:
            parts = [f"{scaling(found, model, system.name, gpus):.2f}" for gpus in GPUS]
            rows.append((model, system.name, *parts, system.printed))
    heads = ("model", "system", *(f"{gpus} GPUs" for gpus in GPUS), f"printed of {GPUS[-1]}")
    lines += table(heads, rows)
    lines += ["", "The same on 16 x 2 with 56 Gbit/s (figure 12's text):", ""]
    printed = {(model, system.name): system.printed for model, systems in LOCAL_SCALING.items() for system in systems}
    lines += table(
        ("model", "system", "here", "printed"),
        (
            (row["model"], row["system"], f"{row['efficiency']:.2f}", printed[row["model"], row["system"]])
            for row in found["local"]
        ),
    )
    lines += ["", "Table 7. Whether to compress one gradient, and K, by CaSync's planner; printed in brackets.", ""]
    rows = []
    for mb in TABLE_7["ps", 4]:
        rows.append((f"{mb} MB", *(cell_7(found, *where, mb) for where in TABLE_7)))
    lines += table(("gradient", *(f"{topology}, {hosts} hosts" for topology, hosts in TABLE_7)), rows)
    lines += [
        "",
        "Figure 12. What the backward pass does not hide of a step, in ms, and by how much that is more or less.",
        "",
    ]
    lines += table(("switch", "VGG19, PS", "", "printed", "BERT-base, ring", "", "printed"), rows_12(found))
    lines += ["", "Figure 14. One gradient on 16 hosts by PS, uncompressed and with TBQ, in ms.", ""]
    heads = ("KiB", "none, K = 1", "TBQ, K = 1", "planned K", "TBQ", "predicted", "best K", "TBQ", "loss")
    lines += table(
        heads,
        (
            (
                row["kib"],
                *(fine(row[name]) for name in ("none_s", "tbq_s")),
                row["K"],
                *(fine(row[name]) for name in ("step_s", "predicted_s")),
                row["best_K"],
                fine(row["best_s"]),
                f"{row['step_s'] / row['best_s'] - 1:.0%}",
            )
            for row in found["figure 14"]
        ),
    )
    pays = ", ".join(f"{row['pays_from_kib']} KiB with {row['call_us']} us" for row in found["figure 14 by call"])
    crossover = f"With K = 1 TBQ pays from {pays} for a call of the codec. The paper prints 1 MB, and no such time."
    lines += ["", *wrapped(crossover), ""]
    lines += ["Figure 15a. Scaling efficiency of BERT-base on 16 x 2 by PS, by the rate of the links.", ""]
    rows = []
    for compression in ("none", "onebit"):
        parts = [row["efficiency"] for row in found["figure 15a"] if row["compression"] == compression]
        rows.append((f"`{compression}`", *(f"{part:.2f}" for part in parts)))
    lines += table(("codec", *(f"{gbit} Gbit/s" for gbit in RATES_15A)), rows)
    lines += ["", "Figure 15b. Throughput of VGG19 on 16 x 2 beside the first line of the codec.", ""]
    steps = {row["compression"]: row["efficiency"] for row in found["figure 15b"]}
    rows = []
    for topology, ratios in RATIOS_15B.items():
        first = steps[next(iter(ratios))]
        rows += [
            (f"`{spec}`", f"`{topology}`", f"{steps[spec]:.2f}", f"{steps[spec] / first - 1:+.1%}", text)
            for spec, text in ratios.items()
        ]
    lines += table(("codec", "route", "efficiency", "throughput", "printed"), rows)
    return "\n".join(lines)


def scaling(found: dict[str, Any], model: str, system: str, gpus: int) -> float:
    """A point of figure 9."""
    wanted = (model, system, gpus)
    (part,) = (row["efficiency"] for row in found["figure 9"] if (row["model"], row["system"], row["gpus"]) == wanted)
    return part


def cell_7(found: dict[str, Any], topology: str, hosts: int, mb: int) -> str:
    """A cell of table 7."""
    wanted = (topology, hosts, mb)
    (row,) = (row for row in found["table 7"] if (row["topology"], row["hosts"], row["mb"]) == wanted)
    return f"{'no' if row['codec'] == 'none' else 'yes'}, {row['K']} ({TABLE_7[topology, hosts][mb]})"


def rows_12(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of figure 12: of each model the time, and how it compares."""
    exposed = {(row["model"], row["switch"]): row["exposed_s"] for row in found["figure 12"]}
    names = [name for name, *_ in ABLATION]
    compared_with = dict(zip(names, (None, 0, 0, 2, 3, 3), strict=True))
    rows = []
    for name, _, vgg19, bert in ABLATION:
        row = [name]
        for model, printed in (("vgg19", vgg19), ("bert-base", bert)):
            base = compared_with[name]
            change = "" if base is None else f"{exposed[model, name] / exposed[model, names[base]] - 1:+.1%}"
            row += [milliseconds(exposed[model, name]), change, printed]
        rows.append(tuple(row))
    return rows


def fine(seconds: float) -> str:
    """In ms, with two digits after the point."""
    return f"{1e3 * seconds:.2f}"

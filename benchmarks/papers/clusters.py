"""The clusters of the ByteComp paper, and what a step of its models is assumed to cost on them.

Rates and sizes are the paper's (section 5.1, footnote 1). It prints neither how long codecs take, nor backward passes,
nor latencies: those are assumed here, and every table says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from casync import _core
from casync.bench.reference_models import MODELS

__all__ = ["ASSUMED", "BACKWARD_S", "CLUSTERS", "Cluster", "plan"]

Link = tuple[float, float, float]  # seconds of latency, per byte, per message
CodecSeconds = tuple[float, float, float, float]  # to encode: fixed, per byte; to decode: likewise


@dataclass(frozen=True)
class Cluster:
    """Machines of one kind."""

    hosts: int
    devices: int
    inter: Link
    intra: Link
    copy_s_per_byte: float
    cores: float  # for codecs, of each device


CLUSTERS = {
    "NVLink, 100 Gbit/s": Cluster(8, 8, (25e-6, 8 / 100e9, 5e-6), (10e-6, 1 / 130e9, 2e-6), 1 / 12e9, 6),
    "PCIe, 25 Gbit/s": Cluster(8, 8, (25e-6, 8 / 25e9, 5e-6), (10e-6, 1 / 12e9, 2e-6), 1 / 12e9, 6),
}
BACKWARD_S = {"vgg16": 0.09, "resnet101": 0.10, "ugatit": 0.25, "bert-base": 0.10, "gpt2": 0.06, "lstm": 0.05}
"""Assumed, for one device."""
ON_DEVICE: CodecSeconds = (30e-6, 0.04e-9, 30e-6, 0.02e-9)
ON_HOST: CodecSeconds = (2e-6, 0.20e-9, 2e-6, 0.10e-9)
FREE: CodecSeconds = (0.0, 0.0, 0.0, 0.0)
ASSUMED = (
    "latencies of 25 us between hosts and 10 us inside",
    "a codec's call on a device takes 30 us and 0.04 ns a byte to encode, 0.02 ns to decode",
    "on a host 2 us, 0.20 ns and 0.10 ns",
    "backward passes of " + ", ".join(f"{model} {1e3 * seconds:.0f} ms" for model, seconds in BACKWARD_S.items()),
    "of that a part for each element",
)


def plan(model: str, cluster: Cluster, codec: str, free: bool = False) -> _core.ModelPlan:
    """A model planned for a cluster. `free`: codecs take no time, as in the paper's upper bound (section 4.1)."""
    shapes = MODELS[model]()[::-1]
    total = sum(math.prod(shape) for shape in shapes)
    gradients, made = [], 0
    for shape in shapes:
        made += math.prod(shape)
        gradients.append((shape[0], math.prod(shape) // shape[0], BACKWARD_S[model] * made / total))
    return _core.plan_model(
        gradients=gradients,
        host_of=[rank // cluster.devices for rank in range(cluster.hosts * cluster.devices)],
        inter=cluster.inter,
        intra=cluster.intra,
        codecs={codec: FREE if free else ON_HOST},
        device_codecs={codec: FREE if free else ON_DEVICE},
        copy_s_per_byte=cluster.copy_s_per_byte,
        processors=cluster.cores,
        on_device=True,
        compression=f"auto({codec})",
    )

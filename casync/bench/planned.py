"""A plan file as something to simulate: its gradients, and what the job that wrote it has measured. Pure but for the
file.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from casync.bench.cluster import CodecCosts
from casync.errors import InvalidArgumentError
from casync.plan.plans import GradientPlan, read_plans

__all__ = ["Planned", "read"]


@dataclass(frozen=True)
class Planned:
    """Gradients in the order of the forward pass, and the plan of each."""

    gradients: list[tuple[int, int]]
    plans: list[dict[str, Any]]
    """As the core takes them."""
    nodes: int | None
    """Hosts of the job that wrote the file; None if it does not say them, or they have different numbers of ranks."""
    ranks_per_node: int | None
    rate: float | None
    """Bytes per second of a link between hosts, as measured; None if it was not."""
    codecs: dict[str, CodecCosts]
    """The costs on a processor of those codecs that the job has measured."""


def read(path: str) -> Planned:
    """Read a plan file. Raises `InvalidArgumentError` if it is none, and for a plan that does not say its tensor.

    A job writes the plans of gradients in the order in which they come first, which is that of the backward pass.
    """
    try:
        plans = read_plans(path)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from None
    if not plans:
        raise InvalidArgumentError(f"{path}: it has no plans")
    backwards = [(_shape(path, name, plan), plan) for name, plan in plans.items()]
    ranks = Counter(plans.host_of)
    is_even = len(set(ranks.values())) == 1
    links = [plan.measured_inter_s_per_byte for plan in plans.values() if plan.measured_inter_s_per_byte > 0]
    return Planned(
        gradients=[shape for shape, _ in reversed(backwards)],
        plans=[asdict(plan) for _, plan in reversed(backwards)],
        nodes=len(ranks) if is_even else None,
        ranks_per_node=next(iter(ranks.values())) if is_even else None,
        rate=1 / statistics.median(links) if links else None,
        codecs=_codecs(list(plans.values())),
    )


def _shape(path: str, name: str, plan: GradientPlan) -> tuple[int, int]:
    """Rows and columns of "float32 (64, 3, 7)"."""
    match = re.fullmatch(r"float32 \(((?:\d+(?:, ?)?)*)\)", plan.tensor)
    if match is None:
        has = f"its tensor is {plan.tensor!r}" if plan.tensor else "it does not say its tensor"
        raise InvalidArgumentError(
            f"{path}: gradient {name!r}: {has}; gradients that are simulated are float32, as in float32 (64, 3)"
        )
    sizes = [int(size) for size in match[1].replace(",", " ").split()]
    return (sizes[0], math.prod(sizes[1:])) if sizes else (1, 1)


def _codecs(plans: Sequence[GradientPlan]) -> dict[str, CodecCosts]:
    measured = defaultdict(list)
    for plan in plans:
        if plan.measured_encode_s_per_byte > 0 and plan.measured_decode_s_per_byte > 0:
            measured[plan.codec].append((plan.measured_encode_s_per_byte, plan.measured_decode_s_per_byte))
    return {
        codec: CodecCosts(
            host=(0.0, statistics.median(e for e, _ in costs), 0.0, statistics.median(d for _, d in costs))
        )
        for codec, costs in measured.items()
    }

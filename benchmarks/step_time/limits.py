"""What holds a step back at a given rate: the link, or the processor cores that all hosts of the lab share.

The lab's hosts are namespaces of one machine. At a high rate its cores, and no longer the links, decide how long a step
takes; such a figure says nothing about real hosts, where each has cores of its own. So a figure counts as one of the
link only while the bytes need longer on the link than all ranks need on the cores.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.machine import in_words
from casync.bench.reference_models import MODELS, mebibytes

__all__ = ["CONTENDERS", "POWERSGD", "Point", "drawn", "headline", "points", "source_note", "table", "wire_bytes"]

POWERSGD = "ddp+powersgd:200"
"""In one bucket, of at most 200 MiB: of several, gloo mixes up the hook's operations."""
POWERSGD_RANK = 4
CONTENDERS = {
    "ddp": "DDP",
    "ddp+fp16": "DDP, fp16 hook",
    POWERSGD: "DDP, powerSGD hook of rank 4",
    "casync:none": "CaSync, uncompressed",
    "casync:fp16": "CaSync, fp16",
    "casync:terngrad(bits=2)": "CaSync, terngrad(bits=2)",
    "casync:onebit": "CaSync, onebit",
}
"""Contender of the worker -> how charts and tables name it, in their order."""


@dataclass(frozen=True)
class Point:
    """One contender at one rate; seconds are medians of the slowest rank's step."""

    contender: str
    rate: str
    bits_per_second: float
    step_s: float
    link_s: float  # the bytes of a step at the goodput of one TCP stream
    core_s: float  # the processor seconds of all ranks, shared by the machine's cores

    @property
    def held_by_link(self) -> bool:
        return self.link_s >= self.core_s


def wire_bytes(model: str, size: int) -> float:
    """What an uncompressed step puts on each link, each way: the least that an allreduce needs."""
    return 2 * (size - 1) / size * mebibytes(MODELS[model]()) * 2**20


def points(sweep: Mapping[str, Any]) -> Iterator[Point]:
    """All of a sweep (rates.py), contender by contender, rates upwards."""
    cores = int(sweep["machine"]["cores"])
    rates = sorted(sweep["rates"], key=lambda one: one["bits_per_second"])
    for contender in CONTENDERS:
        for one in rates:
            figures = one["figures"]
            if contender not in figures["seconds"]:
                continue
            size = figures["size"]
            # What DDP sends is not counted.
            carried = figures["carried"][contender] or _share(contender, sweep["model"]) * wire_bytes(
                sweep["model"], size
            )
            yield Point(
                contender,
                one["rate"],
                one["bits_per_second"],
                statistics.median(figures["seconds"][contender]),
                carried / statistics.median(figures["goodput"]),
                size * statistics.median(figures["cpu"][contender]) / cores,
            )


def _share(contender: str, model: str) -> float:
    """What DDP sends with a hook, as a part of what it sends without."""
    if contender == "ddp+fp16":
        return 0.5
    if contender == POWERSGD:  # a matrix becomes two of that many columns, if that is half as much at most
        sent = total = 0
        for shape in MODELS[model]():
            numel, rows = math.prod(shape), shape[0]
            factors = POWERSGD_RANK * (rows + numel // rows)
            sent += factors if len(shape) > 1 and 2 * factors < numel else numel
            total += numel
        return sent / total
    return 1.0


def drawn(found: Sequence[Point]) -> list[Point]:
    """Those of one contender up to the last rate at which the link held it back, with none missing between."""
    kept = []
    for point in found:
        if not point.held_by_link:
            break
        kept.append(point)
    return kept


def source_note(text: str) -> str:
    """What a chart says of the JSON that it was drawn from, so that a test finds one that was not drawn again."""
    return f"drawn from figures with SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def table(sweep: Mapping[str, Any]) -> str:
    """For the manual: seconds of a step by contender and rate; `cores` where these were the limit."""
    found = list(points(sweep))
    rates = list(dict.fromkeys(point.rate for point in found))
    rows = [["", *rates], ["---"] * (len(rates) + 1)]
    for contender, name in CONTENDERS.items():
        cells = {p.rate: f"{p.step_s:.3f}" if p.held_by_link else "cores" for p in found if p.contender == contender}
        rows.append([name, *(cells.get(rate, "") for rate in rates)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def headline(sweep: Mapping[str, Any]) -> str:
    """For the README: a step at the highest rate at which the link held back DDP, its fp16 hook, and a codec, with the
    date, the revision and the machine.
    """
    found = list(points(sweep))
    lines = {name: {p.rate: p for p in drawn([p for p in found if p.contender == name])} for name in CONTENDERS}
    codecs = [name for name in CONTENDERS if name.startswith("casync:") and name not in ("casync:none", "casync:fp16")]
    rates = [
        rate for rate in lines["ddp"] if rate in lines["ddp+fp16"] and any(rate in lines[codec] for codec in codecs)
    ]
    if not rates:
        raise ValueError("at no rate did the link hold back DDP and a codec: measure lower rates too")
    at = {name: line[rates[-1]] for name, line in lines.items() if rates[-1] in line}
    ours = [f"{at[codec].step_s:.2f} s with `{codec.removeprefix('casync:')}`" for codec in codecs if codec in at]
    hook = ""
    for point in found:
        if (point.contender, point.rate) == (POWERSGD, rates[-1]):
            held = "" if point.held_by_link else ", and the processors are its limit"
            hook = f"DDP's powerSGD hook takes {point.step_s:.2f} s{held}.\n"
    return (
        f"With links of {at['ddp'].bits_per_second / 1e6:g} Mbit/s the synchronisation of a step's gradients takes\n"
        f"{at['ddp'].step_s:.2f} s with DDP, {at['ddp+fp16'].step_s:.2f} s with DDP and its fp16 hook, and "
        f"{' and '.join(ours)} of CaSync.\n{hook}"
        f"Measured on {sweep['date']} at revision {sweep['revision']}, on {in_words(sweep['machine'])}.\n"
    )

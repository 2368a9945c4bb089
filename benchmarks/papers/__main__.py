"""The tables of the papers, by CaSync's own planner and simulator, beside what the papers print.

    python -m benchmarks.papers                       all tables
    python -m benchmarks.papers --page docs/papers.md --json docs/figures/papers.json

What a paper does not print is assumed, and said. So directions and orders can be compared, and not single figures.
There are tables 5 and 6 and figure 13 of ByteComp so far.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks import machine
from benchmarks.fidelity import page
from benchmarks.papers.clusters import ASSUMED, BACKWARD_S, CLUSTERS, plan

# ByteComp, tables 5 and 6: tensors, and milliseconds to decide what to compress and what to offload.
PRINTED = {
    "vgg16": (32, 7, 1),
    "resnet101": (314, 179, 14),
    "ugatit": (148, 84, 1),
    "bert-base": (207, 125, 2),
    "gpt2": (148, 99, 1),
    "lstm": (10, 1, 1),
}
CODECS = ("onebit", "topk(ratio=0.01)", "int8")
MARK = "bytecomp"


def measure(codecs: tuple[str, ...] = CODECS) -> dict[str, Any]:
    """Plan each model for each cluster with each codec."""
    cells = []
    for place, cluster in CLUSTERS.items():
        for model in BACKWARD_S:
            for codec in codecs:
                begun = time.process_time()
                found = plan(model, cluster, codec)
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
                        "free_s": plan(model, cluster, codec, free=True)["step_s"],
                    }
                )
    return {"revision": machine.revision(), "machine": machine.describe(), "cells": cells}


def markdown(found: dict[str, Any]) -> str:
    """The tables as a page has them."""
    heads = "cluster | model | gradients | compressed | on the host | by a list | none | all | plan | no plan under"
    lines = [f"Predicted step in ms, with `{CODECS[0]}`. Assumed are:", "", *(f"- {one}" for one in ASSUMED), ""]
    lines += [f"| {heads} |", "|---" * 10 + "|"]
    first = [cell for cell in found["cells"] if cell["codec"] == CODECS[0]]
    for cell in first:
        counts = [cell[name] for name in ("gradients", "compressed", "on the host", "by a list")]
        times = [f"{1e3 * cell[name]:.1f}" for name in ("none_s", "all_s", "step_s", "bound_s")]
        lines.append(f"| {' | '.join(map(str, [cell['cluster'], cell['model'], *counts, *times]))} |")
    lines += ["", "Time to decide, on one core, in ms, all of it; ByteComp's tables 5 and 6 print it in two parts.", ""]
    lines += [
        "| model | gradients, printed | printed | here, NVLink | here, PCIe | bookings, in millions |",
        "|---" * 6 + "|",
    ]
    for model, (gradients, select, offload) in PRINTED.items():
        own = [cell for cell in first if cell["model"] == model]
        searches = " | ".join(f"{1e3 * cell['search_s']:.0f}" for cell in own)
        bookings = ", ".join(f"{cell['bookings'] / 1e6:.1f}" for cell in own)
        lines.append(f"| {model} | {gradients} | {select} + {offload} | {searches} | {bookings} |")
    lines += ["", f"Distance to a bound (figure 13), over {', '.join(f'`{codec}`' for codec in CODECS)}:", ""]
    lines += ["| cluster | to the bound: median, most | to free codecs: median, most |", "|---" * 3 + "|"]
    for place in CLUSTERS:
        cells = [cell for cell in found["cells"] if cell["cluster"] == place]
        sides = []
        for bound in ("bound_s", "free_s"):
            distances = sorted(cell["step_s"] / cell[bound] - 1 for cell in cells)
            sides.append(f"{distances[len(distances) // 2]:.1%}, {distances[-1]:.1%}")
        lines.append(f"| {place} | {' | '.join(sides)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--read", type=Path, help="take the figures from there")
    parser.add_argument("--page", type=Path, help="put the tables into this page")
    given = parser.parse_args()
    found = json.loads(given.read.read_text()) if given.read else measure()
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    table = markdown(found)
    if given.page:
        page.write(given.page, MARK, table)
    Console().print(Markdown(table))


if __name__ == "__main__":
    main()

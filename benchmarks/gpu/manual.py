"""The manual's tables of what was measured on a GPU, from the JSON that `python -m benchmarks.gpu` wrote."""

from __future__ import annotations

import re
import textwrap
from typing import Any

__all__ = ["tables"]

Line = dict[str, Any]


def tables(figures: Line) -> str:
    """Codecs on the device, then tensors on their way through the host's memory."""
    codecs = {title: line for title, line in figures.items() if title.endswith("all figures")}
    torch = {title.split(",")[0]: line for title, line in figures.items() if title.endswith("torch operations")}
    rows = [
        "| codec, of 256 MiB | tensors | encode, GB/s | decode and add, GB/s | torch's time of ours |",
        "|---|---|---|---|---|",
    ]
    for title, line in codecs.items():
        codec = re.split(r", \d", title)[0]
        rates = (line["bytes"] / line[f"{name}_s"] / 1e9 for name in ("encode", "merge"))
        beside = torch[codec] if line["tensors"] == 1 else {}
        ratios = [f"{value:.1f}" for value in beside.values()]
        rows.append(
            f"| `{codec}` | {line['tensors']} | {' | '.join(f'{rate:.0f}' for rate in rates)} | {', '.join(ratios)} |"
        )
    copies = ["| what | plain copies | CaSync |", "|---|---|---|"]
    for title, line in figures.items():
        if title.startswith("one tensor of"):
            copies.append(
                f"| {title}, there and back | {line['there and back, GB/s']:.0f} GB/s | "
                f"{line['CaSync there and back, GB/s']:.0f} GB/s |"
            )
        elif title.startswith("a step of"):
            copies.append(f"| {title} | {line['plain copies, ms']:.0f} ms | {line['CaSync, ms']:.0f} ms |")
    machine = figures["machine"]
    caption = (
        f"On one {machine['devices'][0]}, at revision {machine['revision']}, with torch {machine['torch']}; medians of "
        f"{figures['repeats']}. In one tensor's row the last column has torch's time for encoding and for decoding, "
        "as a multiple of ours.\n"
    )
    return "\n".join([textwrap.fill(caption, 120) + "\n", *rows, "", *copies, ""])

"""Draws three pictures of the manual: docs/figures/which_way.svg, topologies.svg, and distant.svg out of wan.json.

python tools/drawings.py          writes them

Each has a white ground of its own, so it can be read on a dark page too.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"

STYLE = """
    .yours { fill: #eeeeee; stroke: #777777 }
    .ours { fill: #fde8cd; stroke: #c8781a }
    .asked { fill: #e3eef8; stroke: #1f6fb4 }
    .place { fill: #fafafa; stroke: #bbbbbb }
    .grid { stroke: #e5e5e5 }
    .way { fill: none; stroke: #444444; stroke-width: 1.4; marker-end: url(#tip) }
    .wire { fill: none; stroke: #1f6fb4; stroke-width: 2; marker-end: url(#blue) }
    .back { fill: none; stroke: #1f6fb4; stroke-width: 2; stroke-dasharray: 5 3; marker-end: url(#blue) }
    .both { fill: none; stroke: #1f6fb4; stroke-width: 2; marker-start: url(#blue); marker-end: url(#blue) }
    text { text-anchor: middle; fill: #222222 }
    .left { text-anchor: start }
    .small { font-size: 12px; fill: #444444 }
    .name { font-weight: bold }
    .code { font-family: monospace; font-size: 12px }
"""
TIPS = "".join(
    f'    <marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    f'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>\n'
    for name, color in (("tip", "#444444"), ("blue", "#1f6fb4"))
)


class Drawing:
    """Boxes, lines and words, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            'font-size="13" role="img">\n',
            f"  <title>{html.escape(title)}</title>\n  <desc>{html.escape(description)}</desc>\n",
            f"  <style>{STYLE}  </style>\n  <defs>\n{TIPS}  </defs>\n",
            f'  <rect width="{width}" height="{height}" fill="#ffffff"/>\n',
        ]

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'  <text class="{kind}" x="{x:g}" y="{y:g}">{html.escape(words)}</text>\n')

    def frame(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self._parts.append(
            f'  <rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>\n'
        )

    def box(self, middle: tuple[float, float], size: tuple[float, float], kind: str, lines: dict[str, str]) -> None:
        """A box around its lines: words -> their class."""
        (x, y), (width, height) = middle, size
        self.frame(x - width / 2, y - height / 2, width, height, kind)
        for number, (words, look) in enumerate(lines.items()):
            self.text(x, y + 4.5 + 16 * (number - (len(lines) - 1) / 2), words, look)

    def line(self, kind: str, *points: tuple[float, float]) -> None:
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'  <path class="{kind}" d="M{path}"/>\n')

    def bar(self, x: float, ground: float, width: float, height: float, color: str) -> None:
        self._parts.append(
            f'  <rect fill="{color}" x="{x:g}" y="{ground - height:g}" width="{width:g}" height="{height:g}"/>\n'
        )

    def svg(self) -> str:
        return "".join(self._parts) + "</svg>\n"


QUESTIONS: tuple[tuple[tuple[str, str], str, str], ...] = (
    (
        ("It uses Lightning, Accelerate,", "Transformers, Ray Train or torchtitan"),
        "one line for the library",
        "CasyncStrategy, ddp_kwargs, patch",
    ),
    (("It is written for Horovod", ""), "change the import", "import casync.torch as hvd"),
    (("It uses FSDP2 or HSDP (fully_shard)", ""), "backend, and compress", "casync.torch.fsdp.compress"),
    (("It uses DistributedDataParallel (DDP)", ""), "hook of DDP", "register_comm_hook"),
    (("It uses torch.distributed in another way", "(init_process_group)"), "backend", 'init_process_group("casync")'),
)
OTHERWISE = ("wrap the optimizer", "hvd.DistributedOptimizer")


def which_way() -> Drawing:
    """What a script may use, from above to below, and beside each the way in."""
    drawing = Drawing(
        720,
        455,
        "Which way in",
        "What a script of PyTorch may use, one after the other. The first that fits says how CaSync gets into the "
        "script. The table of the page holds the same.",
    )
    left, right, first, step = 190.0, 545.0, 60.0, 72.0
    drawing.text(45, 22, "Which of these is the first that fits your script?", "left name")
    for number, (question, answer, code) in enumerate(QUESTIONS):
        y = first + step * number
        drawing.box((left, y), (290, 46), "asked", {words: "" for words in question if words})
        drawing.box((right, y), (310, 46), "ours", {answer: "name", code: "code"})
        drawing.line("way", (left + 145, y), (right - 156, y))
        drawing.text((left + right - 10) / 2, y - 6, "yes", "small")
        if number:
            drawing.line("way", (left, y - step + 23), (left, y - 24))
            drawing.text(left + 14, y - step / 2 + 4, "no", "small")
    y = first + step * len(QUESTIONS)
    drawing.line("way", (left, y - step + 23), (left, y), (right - 156, y))
    drawing.text(left + 14, y - step / 2 + 4, "no", "small")
    drawing.box((right, y), (310, 46), "ours", dict(zip(OTHERWISE, ("name", "code"), strict=True)))
    return drawing


RANK = (112.0, 40.0)


def rank(drawing: Drawing, middle: tuple[float, float], number: int, does: str, kind: str = "ours") -> None:
    drawing.box(middle, RANK, kind, {f"rank {number}": "name", does: "small"})


def direct(drawing: Drawing, x: float, y: float) -> None:
    places = [(x + 90, y + 75), (x + 310, y + 75), (x + 90, y + 185), (x + 310, y + 185)]
    for one, (ax, ay) in enumerate(places):
        for bx, by in places[one + 1 :]:
            if ay == by:
                drawing.line("both", (ax + 58, ay), (bx - 58, by))
            elif ax == bx:
                drawing.line("both", (ax, ay + 22), (bx, by - 22))
            else:
                side = 1 if bx > ax else -1
                drawing.line("both", (ax + 50 * side, ay + 23), (bx - 50 * side, by - 23))
    for number, place in enumerate(places):
        rank(drawing, place, number, "encode, decode")


def parameter_server(drawing: Drawing, x: float, y: float) -> None:
    owner = (x + 300, y + 130)
    for number, height in enumerate((75, 130, 185)):
        drawing.line("wire", (x + 128, y + height - 6), (owner[0] - 66, owner[1] + (height - 130) / 3 - 7))
        drawing.line("back", (owner[0] - 62, owner[1] + (height - 130) / 3 + 7), (x + 131, y + height + 8))
        rank(drawing, (x + 70, y + height), (0, 1, 3)[number], "encode, decode")
    drawing.box(owner, (120, 58), "ours", {"rank 2": "name", "the owner: adds,": "small", "encodes the mean": "small"})


def ring(drawing: Drawing, x: float, y: float) -> None:
    places = [(x + 90, y + 75), (x + 310, y + 75), (x + 310, y + 185), (x + 90, y + 185)]
    drawing.line("wire", (x + 147, y + 69), (x + 252, y + 69))
    drawing.line("back", (x + 147, y + 83), (x + 252, y + 83))
    drawing.line("wire", (x + 317, y + 96), (x + 317, y + 163))
    drawing.line("back", (x + 303, y + 96), (x + 303, y + 163))
    drawing.line("wire", (x + 253, y + 185), (x + 148, y + 185))
    drawing.line("back", (x + 90, y + 164), (x + 90, y + 97))
    for number, place in enumerate(places):
        rank(drawing, place, number, ("begins the sum", "adds", "adds", "makes the mean")[number])


def two_level(drawing: Drawing, x: float, y: float) -> None:
    for host, left in enumerate((x + 20, x + 250)):
        middle = left + 65
        drawing.frame(left, y + 45, 130, 175, "place")
        drawing.text(left + 65, y + 212, f"host {host}", "small")
        drawing.line("way", (middle - 8, y + 150), (middle - 8, y + 98))
        drawing.line("way", (middle + 8, y + 96), (middle + 8, y + 148))
        rank(drawing, (middle, y + 75), 2 * host, "encode, decode")
        rank(drawing, (middle, y + 171), 2 * host + 1, "gives its own", "yours")
    drawing.line("both", (x + 143, y + 75), (x + 257, y + 75))


TOPOLOGIES: tuple[tuple[str, Callable[[Drawing, float, float], None], tuple[str, str]], ...] = (
    (
        "direct",
        direct,
        ("Each rank encodes once and sends to all others.", "Each decodes all payloads, and adds them up."),
    ),
    (
        "ps",
        parameter_server,
        (
            "Payloads go to the owner of the partition. The encoded mean",
            "comes back. Other partitions have other owners.",
        ),
    ),
    (
        "ring",
        ring,
        ("The sum grows from rank to rank. Then the mean goes round.", "Most codecs would encode again at every hop."),
    ),
    (
        "two_level",
        two_level,
        (
            "The ranks of a host add up uncompressed, in its memory. One",
            "of them encodes the sum, for the other hosts.",
        ),
    ),
)


def topologies() -> Drawing:
    """A small drawing of each: who sends what to whom."""
    drawing = Drawing(
        840,
        610,
        "The four topologies",
        "How one partition of a gradient goes over four ranks. direct: everybody sends to everybody. ps: all send to "
        "the partition's owner, which adds up and sends back the mean. ring: the sum goes from rank to rank, then the "
        "mean. two_level: the ranks of a host add up first, and one of them exchanges payloads with the other hosts.",
    )
    for number, (name, draw, words) in enumerate(TOPOLOGIES):
        x, y = 10 + 415 * (number % 2), 5 + 290 * (number // 2)
        drawing.frame(x, y, 405, 280, "place")
        drawing.text(x + 14, y + 24, name, "left name")
        draw(drawing, x, y)
        for line, sentence in enumerate(words):
            drawing.text(x + 14, y + 246 + 17 * line, sentence, "left small")
    drawing.line("wire", (20, 598), (60, 598))
    drawing.text(68, 602, "what ranks send", "left small")
    drawing.line("back", (190, 598), (230, 598))
    drawing.text(238, 602, "the mean on its way back", "left small")
    drawing.line("way", (420, 598), (460, 598))
    drawing.text(468, 602, "through the memory of a host", "left small")
    return drawing


BARS = {
    "CaSync, uncompressed": "#1f6fb4",
    "CaSync, where only cubic is allowed": "#8fb8dc",
    "gloo, on a system whose default is bbr": "#555555",
    "gloo": "#8c8c8c",
    "CaSync over MPI": "#c8c8c8",
}


def distant() -> Drawing:
    """Of docs/figures/wan.json the contenders that compress nothing, without the raw streams."""
    measured = json.loads((FIGURES / "wan.json").read_text(encoding="utf-8"))
    rates = measured["mbit_per_second"]
    drawing = Drawing(
        760,
        350,
        "Gradients over a long link",
        "Mbit/s of uncompressed gradients each way between two emulated hosts with a link of 300 Mbit/s, by round trip "
        "and loss. The table of the page holds the same.",
    )
    drawing.text(14, 22, "Mbit/s of uncompressed gradients each way, on a link of 300 Mbit/s", "left name")
    ground, scale, width = 262.0, 0.7, 30.0
    for level in (0, 100, 200, 300):
        drawing.line("grid", (50, ground - scale * level), (750, ground - scale * level))
        drawing.text(28, ground - scale * level + 4, str(level), "small")
    for group, case in enumerate(rates["CaSync, uncompressed"]):
        left = 70 + 172 * group
        for number, (name, color) in enumerate(BARS.items()):
            value = rates[name][case]
            drawing.bar(left + width * number, ground, width - 4, scale * value, color)
            drawing.text(left + width * number + width / 2 - 2, ground - scale * value - 5, str(value), "small")
        drawing.text(left + 2.5 * width, ground + 18, case, "small")
    for number, (name, color) in enumerate(BARS.items()):
        left, below = (50, 235, 490)[number % 3], 312 + 22 * (number // 3)
        drawing.bar(left, below, 12, 12, color)
        drawing.text(left + 18, below - 1, name, "left small")
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "which_way.svg": which_way,
    "topologies.svg": topologies,
    "distant.svg": distant,
}


if __name__ == "__main__":
    for file, made in DRAWINGS.items():
        (FIGURES / file).write_text(made().svg(), encoding="utf-8")

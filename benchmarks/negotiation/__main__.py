"""What a steady step costs rank 0: 400 gradients of 64 KiB in virtual worlds of 4, 16, 64 and 128 ranks.

    python -m benchmarks.negotiation [--turns 3]

Once with all gradients submitted at once, once over 200 ms. Prints, of the last step, how many entries say that a rank
is ready and how many that it may begin, the heads that rank 0 takes and sends, the time inside the Engine (the lowest
of the turns: this is one thread's own work), and how long the step takes in virtual time, where links are no limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
COLUMNS = {
    "ranks": "ranks",
    "over_ms": "over ms",
    "ready": "ready",
    "start": "start",
    "heads_in": "heads in",
    "heads_out": "heads out",
    "events": "events",
    "inside_ms": "inside ms",
    "step_ms": "step ms",
}


def build(folder: Path) -> Path:
    for command in (
        ["cmake", "-S", str(HERE), "-B", str(folder), "-GNinja", "-DCMAKE_BUILD_TYPE=Release", "--log-level=WARNING"],
        ["cmake", "--build", str(folder), "--target", "negotiation"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "negotiation"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.negotiation", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--most", type=int, default=128, help="no world of more ranks")
    parser.add_argument("--build", type=Path, default=Path("build/negotiation"))
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/negotiation.json"))
    arguments = parser.parse_args()
    program = build(arguments.build)
    turns = []
    for _ in range(arguments.turns):
        lines = subprocess.run([program, str(arguments.most)], check=True, capture_output=True, text=True).stdout
        turns.append([json.loads(line) for line in lines.splitlines()])
    worlds = [min(same, key=lambda world: world["inside_ms"]) for same in zip(*turns, strict=True)]
    table = Table(title=f"rank 0, one steady step; {os.cpu_count()} cores, {arguments.turns} turns")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for world in worlds:
        table.add_row(*(str(world[column]) for column in COLUMNS))
    Console(width=120).print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(worlds))


if __name__ == "__main__":
    main()

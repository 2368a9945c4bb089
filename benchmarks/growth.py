"""How much a rank grows over many steps of ever new shapes and names, and over many sessions of one process.

By hand, about five minutes for each rank's 200,000 steps on a machine with nothing else to do:

    casyncrun -np 2 .venv/bin/python benchmarks/growth.py
    .venv/bin/python benchmarks/growth.py --steps 0 --sessions 1000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import casync.numpy as hvd
import numpy as np

_WARM_UP = 1_000
_SMALL = 100  # elements
_ROWS, _COLS = 400, 250  # at most, of 100,000 shapes


def resident_bytes() -> int:
    """Memory of this process that is there, and not shared with a file."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def growth_of(step: Callable[[int], object], steps: int) -> float:
    """MiB by which this process grows from step 1,000 on; it tells of it as it goes."""
    first = 0
    for i in range(steps):
        if i == min(_WARM_UP, steps - 1):
            first = resident_bytes()
        step(i)
        if i > 0 and i % 20_000 == 0:
            _say(f"  step {i}: {(resident_bytes() - first) / 2**20:+.2f} MiB")
    return (resident_bytes() - first) / 2**20


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="of shapes, and as many of names")
    parser.add_argument("--sessions", type=int, default=0)
    arguments = parser.parse_args()
    values = np.ones(_ROWS * _COLS, np.float32)

    def shaped(i: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        rows, cols = _ROWS - i % _ROWS, _COLS - i // _ROWS % _COLS
        return values[: rows * cols].reshape(rows, cols)

    if arguments.steps > 0:
        hvd.init()
        rank = hvd.rank()
        cases: dict[str, Callable[[int], object]] = {
            "shapes of one name": lambda i: hvd.allreduce(shaped(i), name="shape"),
            "names": lambda i: hvd.allreduce(values[:_SMALL], name=f"name {i}"),
        }
        for what, step in cases.items():
            _say(f"rank {rank}: {arguments.steps} {what}: {growth_of(step, arguments.steps):+.2f} MiB")
        hvd.shutdown()
    for count in (100, arguments.sessions):
        if arguments.sessions == 0:
            break
        before = resident_bytes()
        for _ in range(count):
            hvd.init()
            hvd.allreduce(values[:_SMALL], name="session")
            hvd.shutdown()
        _say(f"{count} sessions: {(resident_bytes() - before) / 2**20:+.2f} MiB")


if __name__ == "__main__":
    main()

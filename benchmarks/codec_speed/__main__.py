"""The library's codecs beside the same algorithms in plain torch operations (torch_reference.py), one thread each.

    python -m benchmarks.codec_speed [--mib 256] [--cols 4096] [--turns 5] [--isa avx2] [--json FILE] [codec ...]

Ours, torch and a memcpy of the gradient take turns in one process; ratios are medians over the turns, of processor
time. Both keep residual and state over the steps, of which each has another gradient. torch gets its memory back from
the allocator, where it would else pay for fresh pages in every operation. Before anything is measured both encode
the same gradient, and must decode to as much.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.codec_speed.ours import Ours, tensor
from benchmarks.codec_speed.torch_reference import REFERENCES
from casync import _core

STEPS, SHIFT = 32, 128 * 1024  # gradients that differ, and elements from one to the next
STEPS_BEFORE = 8
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt

Run = Callable[[], object]


@dataclass(frozen=True)
class Row:
    codec: str
    operation: str
    ours_to_memcpy: float
    torch_to_memcpy: float
    faster: float
    """Time of torch over ours."""
    goal: float
    """0: none."""


class Bench:
    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape, self.size = shape, shape[0] * shape[1]
        self.numbers = tensor(self.size + (STEPS - 1) * SHIFT)
        np.random.default_rng(1).standard_normal(dtype=np.float32, out=self.numbers)
        self.out = tensor(self.size)
        self.step = 0

    def gradient(self) -> np.ndarray:
        begin = self.step % STEPS * SHIFT
        return self.numbers[begin : begin + self.size]

    def copy(self) -> None:
        ctypes.memmove(self.out.ctypes.data, self.numbers.ctypes.data, self.out.nbytes)

    def rows(self, spec: str, turns: int) -> Iterator[Row]:
        self.step = 0
        ours, theirs = Ours(spec, self.shape, self.gradient()), REFERENCES[spec](self.shape)
        payload = None
        out = torch.from_numpy(self.out)

        def encode() -> None:
            ours.encode(self.gradient())

        def encode_theirs() -> None:
            nonlocal payload
            payload = theirs.encode(torch.from_numpy(self.gradient()))

        encode()
        encode_theirs()
        whole = ours.codec.info.whole  # powersgd, whose reference is its matmuls alone
        if not whole:
            ours.decode(self.out)
            check_alike(spec, out, theirs.decode(payload))
        for _ in range(STEPS_BEFORE):
            self.step += 1
            encode()
            encode_theirs()
        operations: dict[str, tuple[Run, Run, float]] = {
            "encode": (encode, encode_theirs, 5),
            "decode": (lambda: ours.decode(self.out), lambda: theirs.decode(payload), 0),
            "decode+merge": (
                lambda: ours.merge(self.out),
                lambda: theirs.merge(payload, out),
                0 if ours.codec.info.rounds[0] == "gather" else 5,
            ),
        }
        if whole:

            def both() -> None:
                encode()
                ours.decode(self.out)

            def both_of_theirs() -> None:
                encode_theirs()
                theirs.decode(payload)

            operations = {"all rounds, beside matmuls": (both, both_of_theirs, 1)}
        for operation, (run, run_theirs, goal) in operations.items():
            yield self._measure(spec, operation, run, run_theirs, goal, turns)

    def _measure(self, spec: str, operation: str, run: Run, run_theirs: Run, goal: float, turns: int) -> Row:
        seconds = []
        for _ in range(turns):
            self.step += 1
            seconds.append([seconds_of(each) for each in (self.copy, run, run_theirs)])
        median = statistics.median
        return Row(
            spec,
            operation,
            median(copy / ours for copy, ours, _ in seconds),
            median(copy / theirs for copy, _, theirs in seconds),
            median(theirs / ours for _, ours, theirs in seconds),
            goal,
        )


def check_alike(spec: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    norms = ours.norm().item(), theirs.norm().item()
    if not 0.9 < norms[0] / norms[1] < 1.1:
        raise SystemExit(f"{spec}: ours decodes to a norm of {norms[0]:g}, torch to {norms[1]:g}: two algorithms")


def seconds_of(run: Run) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def keep_memory() -> None:
    """One heap that is never given back."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec_speed", description=__doc__)
    parser.add_argument("codecs", nargs="*", metavar="codec", help=f"those of {', '.join(REFERENCES)}")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--isa", choices=_core.isas(), default=_core.isa())
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/codec_speed_torch.json"))
    arguments = parser.parse_args()
    keep_memory()
    _core.force_isa(arguments.isa)
    torch.set_num_threads(1)
    bench = Bench(((arguments.mib << 18) // arguments.cols, arguments.cols))
    table = Table(title=f"{arguments.mib} MiB, medians of {arguments.turns} turns; ! falls short")
    for column in ("codec", "operation", "to memcpy", "torch to memcpy", "times faster than torch", "goal"):
        table.add_column(column, justify="left" if column in ("codec", "operation") else "right")
    specs = [spec for spec in arguments.codecs or REFERENCES if spec in REFERENCES]
    rows = [row for spec in specs for row in bench.rows(spec, arguments.turns)]
    for row in rows:
        goal = f"{row.goal:g}{' !' if row.faster < row.goal else ''}" if row.goal else ""
        ratios = (row.ours_to_memcpy, row.torch_to_memcpy, row.faster)
        table.add_row(row.codec, row.operation, *(f"{ratio:.3g}" for ratio in ratios), goal)
    Console(width=120).print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()

"""Trains one small classifier with every codec and several seeds, and says what each codec costs in accuracy.

    python -m benchmarks.accuracy

The task: 300 steps of SGD (learning rate 0.05, momentum 0.9) on scikit-learn's digits, a 64-512-512-10 network, 4 ranks
with batches of 32. A seed sets the first weights and the order of the images; the 360 test images stay the same.

Each codec is one job. Its figures are written as soon as it ends, so a run that is cut off keeps what it has, and goes
on from there. The table of docs/codecs.md is made from this file (tools/tables.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks.accuracy.statistics import Figures, table
from benchmarks.ranks import result_of

WORKER = "benchmarks.accuracy.worker"
CODECS = (
    "none",
    "fp16",
    "onebit",
    "tbq",
    "terngrad",
    "graddrop",
    "dgc(ratio=0.01, warmup_steps=20)",
    "adacomp",
    "threelc",
    "powersgd(rank=4, start_step=20)",
    "efsignsgd",
    "int8",
    "int4",
    "fp8",
    "qsgd",
    "minmax_uint8",
    "topk",
    "randomk",
    "topkc",
    "thc",
    "rotated",
    "lossless",
    "ternary",
    "sparseloco",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--codecs", default=";".join(CODECS), help="separated by ';'")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=1500.0, help="seconds for one codec")
    parser.add_argument("--json", type=Path, default=Path("docs/figures/accuracy.json"))
    arguments = parser.parse_args()
    results: dict[str, Figures] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    for codec in arguments.codecs.split(";"):
        if len(results.get(codec, {}).get("accuracy", [])) != arguments.seeds:
            words = (codec, str(arguments.seeds))
            results[codec] = result_of(arguments.ranks, WORKER, *words, timeout=arguments.timeout)
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    Console(width=120).print(table(results))


if __name__ == "__main__":
    main()

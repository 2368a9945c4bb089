"""How far what ranks receive is from the mean of their gradients, on gradients of a small transformer.

    python -m benchmarks.aggregate_error --page docs/codecs.md

The gradients are those of the task of `benchmarks.fidelity`, 16 workers with batches of 8, in steps 50 and 200 of a
training on their mean, and all weights are one array. Nothing is held back before. `topkc` stands beside `topk` with
as many bits, where `topk` sends 48 for each value, and beside itself on values in a random order (Han et al., tables 4
and 7). `thc` stands with the part of its sums that are cut off. The codecs that encode sums anew stand by a ring of 16
beside the parameter server. Takes three minutes. Writes the figures as JSON, and with `--page` the tables into a page.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import machine
from benchmarks.aggregate_error.aggregates import by_ring, cut_off, direct, served, vnmse
from benchmarks.aggregate_error.gradients import gradients_of
from benchmarks.fidelity import page

FIGURES = Path("docs/figures/aggregate_error.json")
WORKERS, STEPS = 16, (50, 200)
FEW = 4  # workers for topk and topkc, as in the paper
BITS = {0.5: "topkc(bits=0.5, chunk=128)", 2.0: "topkc(bits=2)", 8.0: "topkc(bits=8)"}
LEVELS = (2, 3, 4, 5, 6, 8)
SIZES = (2, 4, 8, 16)
ENCODED_ANEW = (
    "bf16",
    "lossless",
    "int8",
    "fp8",
    "qsgd(bits=8)",
    "minmax_uint8",
    "int4",
    "rotated",
    "terngrad(bits=4)",
)

Gradients = Mapping[int, np.ndarray]


def mean_of(gradients: Gradients, workers: int, measure: Callable[[np.ndarray], float]) -> float:
    """The mean over the steps, of the first workers."""
    return statistics.mean(measure(one[:workers]) for one in gradients.values())


def error(gradients: Gradients, workers: int, way: Callable[[str, np.ndarray], np.ndarray], spec: str) -> float:
    return mean_of(gradients, workers, lambda one: vnmse(way(spec, one), one))


def measured(gradients: Gradients) -> dict[str, Any]:
    order = np.random.default_rng(0).permutation(next(iter(gradients.values())).shape[1])
    shuffled = {step: np.ascontiguousarray(one[:, order]) for step, one in gradients.items()}
    chunks = {
        f"{bits:g}": {
            "topk": error(gradients, FEW, direct, f"topk(ratio={bits / 48:.8f})"),
            "topkc": error(gradients, FEW, direct, spec),
            "topkc, values in random order": error(shuffled, FEW, direct, spec),
        }
        for bits, spec in BITS.items()
    }
    sums = {
        f"{q}": {
            f"{workers}": {
                "vnmse": error(gradients, workers, direct, f"thc(q={q})"),
                "cut off": mean_of(gradients, workers, lambda one, q=q: cut_off(f"thc(q={q})", one)),  # type: ignore[misc]
            }
            for workers in SIZES
        }
        for q in LEVELS
    }
    anew = {
        spec: {"ps": error(gradients, WORKERS, served, spec), "ring": error(gradients, WORKERS, by_ring, spec)}
        for spec in ENCODED_ANEW
    }
    return {"chunks": chunks, "thc": sums, "encoded anew": anew}


def rows(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """By the mark of its place in a page."""
    chunks = figures["chunks"]
    ways = list(next(iter(chunks.values())))
    by_bits = [
        [
            f"`{way.partition(',')[0]}`{way.removeprefix(way.partition(',')[0])}",
            *(f"{of[way]:.3f}" for of in chunks.values()),
        ]
        for way in ways
    ]
    by_size = [[f"`thc(q={q})`", *(_of_sums(of[f"{size}"]) for size in SIZES)] for q, of in figures["thc"].items()]
    anew = [
        [f"`{spec}`", f"{of['ps']:.2g}", f"{of['ring']:.2g}", f"{of['ring'] / of['ps']:.1f}"]
        for spec, of in figures["encoded anew"].items()
    ]
    return {
        "error of chunks": rows(["codec", *(f"{bits} bits" for bits in chunks)], by_bits),
        "error of thc": rows(["codec", *(f"{size} ranks" for size in SIZES)], by_size),
        "error of a ring": rows(["codec", "`ps`", "`ring`", "ratio"], anew),
    }


def _of_sums(figures: Mapping[str, float]) -> str:
    cut = figures["cut off"]
    return f"{figures['vnmse']:.2g}" + (f", {100 * cut:.2g} % cut off" if cut else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregate_error", description=__doc__)
    parser.add_argument("--json", type=Path, default=FIGURES)
    parser.add_argument("--page", type=Path, help="put the tables there")
    parser.add_argument("--measured", action="store_true", help="take the figures that the file has")
    given = parser.parse_args()
    if given.measured:
        figures = json.loads(given.json.read_text())
    else:
        figures = measured(gradients_of(WORKERS, STEPS))
        figures |= {"machine": machine.describe(), "revision": machine.revision()}
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    for mark, table in tables(figures).items():
        Console(width=120).print(Markdown(table))
        if given.page:
            page.write(given.page, mark, table)


if __name__ == "__main__":
    main()

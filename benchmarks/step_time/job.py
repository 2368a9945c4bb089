"""Starts the workers of a benchmark on the hosts of a lab, and returns their figures."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.netlab import Netlab

__all__ = ["Figures", "figures_of", "run"]

Figures = dict[str, Any]
"""What worker.py writes: per contender `seconds`, `cpu`, `codecs` and `carried`, and `goodput`, `checks`, `size`."""

MALLOC = {  # both sides: keep freed gradients instead of faulting their pages in again at every step
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_ARENA_MAX": "2",
}


def run(
    lab: Netlab, model: str, *, hosts: int, contenders: str, rounds: int, topology: str = "auto", timeout: float
) -> Figures:
    """One rank on each host; all contenders take turns in it."""
    words = ["--model", model, "--contenders", contenders, "--rounds", str(rounds), "--topology", topology]
    return figures_of(lab, hosts, "benchmarks.step_time.worker", words, timeout=timeout)


def figures_of(lab: Netlab, ranks: int, module: str, words: Sequence[str], *, timeout: float) -> Figures:
    """What rank 0 of `python -m module words` wrote as JSON to the file that is named to it with `--out`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        env = {**MALLOC, "STEP_TIME_RENDEZVOUS": f"file://{folder}/store", "GLOO_SOCKET_IFNAME": "eth0"}
        exports = [word for variable in env for word in ("-x", variable)]
        argv = [sys.executable, "-m", module, *words, "--out", str(out)]
        result = lab.run(ranks, argv, env, timeout=timeout, casyncrun_args=exports)
        if result.status != 0 or not out.exists():
            raise SystemExit(
                f"{module} {' '.join(words)} failed with status {result.status}\n{result.stdout}\n{result.stderr}"
            )
        result_of_rank_0: dict[str, Any] = json.loads(out.read_text())
        return result_of_rank_0

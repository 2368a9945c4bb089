"""What each rank of a job measures, for any framework: the parts of a step alone, and the whole, in turns."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping

import casync.numpy as hvd

LAYERS, WIDTH = 8, 1024
"""A model with gradients of 32 MiB, which take 0.4 s on the wire at 1 Gbit/s."""
PARTS = ("forward", "compute", "communication", "step")


def measure(parts: Mapping[str, Callable[[], object]], rounds: int) -> None:
    """Run the parts in turns, all ranks together; rank 0 prints the medians in seconds.

    `forward` is the loss alone; `compute` a step without other ranks; `communication` the gradients' reduction alone;
    `step` both. Each returns when it is over.
    """
    times: dict[str, list[float]] = {name: [] for name in PARTS}
    for turn in range(rounds + 2):
        for name in PARTS:
            hvd.barrier()
            begin = time.perf_counter()
            parts[name]()
            hvd.barrier()
            if turn >= 2:  # graphs are made, plans agreed
                times[name].append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        print("MEDIANS", json.dumps({name: statistics.median(seconds) for name, seconds in times.items()}), flush=True)


def saved(medians: Mapping[str, float]) -> float:
    """The part of what overlap could save that was saved: the shorter of backward and communication could be hidden."""
    backward = medians["compute"] - medians["forward"]
    hidden = medians["compute"] + medians["communication"] - medians["step"]
    return hidden / min(backward, medians["communication"])

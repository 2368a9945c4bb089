"""The way of a GPU's tensors through the host's memory, beside plain copies of the same bytes, at one rank.

    python -m benchmarks.gpu

Nobody is sent anything: what is measured is the copies and what CaSync adds. First one tensor at a time, of three
sizes; then a step, in which all gradients of a model are outstanding at once. A line is printed, and the JSON written
anew, after each measurement, so that a run that is cut off leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device_memory import DeviceMemory, WholeDevice
from benchmarks.machine import describe
from casync import cuda
from casync.config import Config
from casync.errors import DeviceError
from casync.models import MODELS
from casync.session import Session
from casync.terms import OpKind, Terms

SIZES = (1 << 20, 16 << 20, 256 << 20)
"""Of one tensor, in bytes."""


def median(action: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, after a warm-up."""
    seconds = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


class Way:
    """Tensors of float32 that lie one behind the other in a device's memory."""

    def __init__(self, memory: DeviceMemory, session: Session, counts: Sequence[int]) -> None:
        self._memory, self._session = memory, session
        self._device = WholeDevice()
        self._ranges: list[tuple[int, int]] = []
        self._registrations = []
        end = 0
        for count in counts:
            self._ranges.append((end, end + 4 * count))
            end += 4 * count
            terms = Terms(
                f"allreduce.{count}.{len(self._ranges)}", OpKind.ALLREDUCE, "float32", (count,), on_device=True
            )
            self._registrations.append(terms.register(session))
        self.bytes = end

    def plain(self, to_host: bool, to_device: bool) -> None:
        for begin, end in self._ranges:
            if to_host:
                self._memory.to_host(begin, end)
            if to_device:
                self._memory.to_device(begin, end)
        self._memory.synchronize()

    def staged(self) -> None:
        """An allreduce of each in place, which brings it to the host and back."""
        handles = []
        for registration, (begin, _) in zip(self._registrations, self._ranges, strict=True):
            address = self._memory.address + begin
            handles.append(self._session.submit(registration, address, address, None, wake=False, device=self._device))
        self._session.synchronize_all(handles)
        self._memory.synchronize()


def one_tensor(way: Way, repeats: int) -> dict[str, float]:
    """In 1e9 bytes per second; there and back counts the bytes of both ways."""
    copied = {
        "to the host": way.bytes / median(lambda: way.plain(True, False), repeats),
        "to the device": way.bytes / median(lambda: way.plain(False, True), repeats),
        "there and back": 2 * way.bytes / median(lambda: way.plain(True, True), repeats),
        "CaSync there and back": 2 * way.bytes / median(way.staged, repeats),
    }
    return {name: rate / 1e9 for name, rate in copied.items()}


def one_step(way: Way, repeats: int) -> dict[str, float]:
    """In milliseconds."""
    plain, staged = median(lambda: way.plain(True, True), repeats), median(way.staged, repeats)
    return {"plain copies": plain * 1e3, "CaSync": staged * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="bert-base", help="whose gradients a step has")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/gpu.json"))
    arguments = parser.parse_args()
    try:
        devices = cuda.devices()
    except DeviceError as error:
        print(f"GPU benchmarks skipped: {error}")
        return
    results: dict[str, Any] = {"machine": describe() | {"devices": devices}, "repeats": arguments.repeats}

    def note(title: str, figures: dict[str, float], unit: str) -> None:
        results[title] = {f"{name}, {unit}": figure for name, figure in figures.items()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(
            f"{title}: " + ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items()) + f" {unit}",
            flush=True,
        )

    gradients = [math.prod(shape) for shape in MODELS[arguments.model]()]
    print(f"medians of {arguments.repeats}, on {devices[0]}", flush=True)
    memory = DeviceMemory(max(*SIZES, 4 * sum(gradients)))
    with Session(Config()) as session:
        for size in SIZES:
            way = Way(memory, session, [size // 4])
            note(f"one tensor of {size >> 20} MiB", one_tensor(way, arguments.repeats), "GB/s")
        way = Way(memory, session, gradients)
        title = f"a step of {arguments.model}, {len(gradients)} gradients of {way.bytes >> 20} MiB together"
        note(title, one_step(way, arguments.repeats), "ms")
    print(f"all of it is in {arguments.json}", flush=True)


if __name__ == "__main__":
    main()

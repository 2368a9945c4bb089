"""What can be measured on one GPU, at one rank: nobody is sent anything.

    python -m benchmarks.gpu [tensor] [step] [codecs]

`tensor` and `step` take the way through the host's memory, beside plain copies of the same bytes: one tensor at a time,
of three sizes; then all gradients of a model outstanding at once. `codecs` encodes on the device, and decodes and adds,
beside a copy within the device and beside the same algorithm in torch operations (codecs.py). A line is printed, and
the JSON written anew, after each measurement, so that a run that is cut off leaves what it had.
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
from benchmarks.gpu.codecs import CODECS, GROUP, in_torch, lines
from benchmarks.machine import describe
from casync import cuda
from casync.bench.reference_models import MODELS
from casync.config.settings import Config
from casync.errors import DeviceError
from casync.session.session import Session
from casync.tensors.signature import OpKind, OpSignature

SIZES = (1 << 20, 16 << 20, 256 << 20)
"""Of one tensor, in bytes; the largest is `--mib`."""

PARTS = ("tensor", "step", "codecs")


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
            terms = OpSignature(
                f"allreduce.{count}.{len(self._ranges)}", OpKind.ALLREDUCE, "float32", (count,), on_device=True
            )
            self._registrations.append(session.register(terms))
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


class Results:
    """What was measured, in a file that is written anew each time."""

    def __init__(self, path: Path, first: dict[str, Any]) -> None:
        self._path, self._all = path, first

    def note(self, title: str, figures: dict[str, float], unit: str) -> None:
        self.keep(title, {f"{name}, {unit}": figure for name, figure in figures.items()})
        print(f"{title}: " + ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items()), unit, flush=True)

    def keep(self, title: str, what: dict[str, Any]) -> None:
        self._all[title] = what
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._all, indent=1), encoding="utf-8")


def largest(arguments: argparse.Namespace) -> int:
    """Elements of the largest tensor."""
    return max(int(arguments.mib * (1 << 20)) // 4 // GROUP * GROUP, GROUP)


def through_the_host(results: Results, parts: Sequence[str], arguments: argparse.Namespace) -> None:
    gradients = [math.prod(shape) for shape in MODELS[arguments.model]()] if "step" in parts else []
    sizes = sorted({min(size, 4 * largest(arguments)) for size in SIZES}) if "tensor" in parts else []
    memory = DeviceMemory(max([*sizes, 4 * sum(gradients)]))
    with Session(Config()) as session:
        for size in sizes:
            way = Way(memory, session, [size // 4])
            results.note(f"one tensor of {size / (1 << 20):g} MiB", one_tensor(way, arguments.repeats), "GB/s")
        if gradients:
            way = Way(memory, session, gradients)
            title = f"a step of {arguments.model}, {len(gradients)} gradients of {way.bytes >> 20} MiB together"
            results.note(title, one_step(way, arguments.repeats), "ms")


def codecs_on_the_device(results: Results, arguments: argparse.Namespace) -> None:
    elements = largest(arguments)
    for codec in CODECS:
        seconds: dict[str, float] = {}
        for line in lines(arguments.program, codec, elements, arguments.repeats):
            tensors = line["tensors"]
            title = f"{codec}, {elements * 4 / (1 << 20):g} MiB as {tensors} tensor{'s' * (tensors > 1)}"
            results.keep(f"{title}, all figures", line)
            results.note(title, {name: line["copy_s"] / line[f"{name}_s"] for name in ("encode", "merge")}, "of a copy")
            seconds = seconds or line
        if torch_seconds := in_torch(codec, elements, arguments.repeats):
            title = f"{codec}, one tensor, torch operations"
            results.note(title, {name: took / seconds[name] for name, took in torch_seconds.items()}, "of our time")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}: all of them if none is named")
    parser.add_argument("--mib", type=float, default=256, help="the largest tensor")
    parser.add_argument("--model", choices=sorted(MODELS), default="bert-base", help="whose gradients a step has")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--program", type=Path, default=Path("build/gpu_codecs/gpu_codecs"), help="of codecs.cc")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/gpu.json"))
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    if unknown := set(parts).difference(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    try:
        devices = cuda.devices()
    except DeviceError as error:
        print(f"GPU benchmarks skipped: {error}")
        return
    results = Results(arguments.json, {"machine": describe() | {"devices": devices}, "repeats": arguments.repeats})
    print(f"medians of {arguments.repeats}, on {devices[0]}", flush=True)
    if "codecs" in parts:
        codecs_on_the_device(results, arguments)
    if {"tensor", "step"}.intersection(parts):
        through_the_host(results, parts, arguments)
    print(f"all of it is in {arguments.json}", flush=True)


if __name__ == "__main__":
    main()

"""One rank of the benchmark of local steps: rounds of one contender, with the time of its parts.

Computing is a sleep, so that the ranks of several hosts do not share the cores of one machine for it. Before each round
the parameters are changed by numbers of this rank's own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import casync.torch as hvd
import torch
import torch.distributed as dist

from benchmarks.local_steps import beside_torchft
from benchmarks.pytorch_hooks import with_hook

TENSORS = 24
STEPS = 6  # that are measured where gradients are sent in each


class Model(torch.nn.Module):
    """So many numbers, in matrices of equal size."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        columns = 512
        rows = max(1, round(numel / TENSORS / columns))
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(rows, columns)) for _ in range(TENSORS)])

    def change(self, rank: int, turn: int) -> None:
        """As a round of training might, of which a part is alike on all ranks."""
        generator = torch.Generator().manual_seed(1000 * turn + rank)
        noise = torch.randn(self.weights[0].shape, generator=generator)
        with torch.no_grad():
            for place, weight in enumerate(self.weights):
                weight.add_(noise.roll(place), alpha=1e-3)


class Clock:
    """Sleeps for a step at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def compute(self, work: Callable[[], None] | None = None) -> None:
        """A step of computing. `work` is done within it."""
        end = time.perf_counter() + self.seconds
        if work is not None:
            work()
        time.sleep(max(0.0, end - time.perf_counter()))


def by_rounds(contender: str, given: argparse.Namespace, model: Model, clock: Clock) -> dict[str, Any]:
    """Rounds of DiLoCo: `blocking:CODEC` or `streaming:CODEC`."""
    way, _, codec = contender.partition(":")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    fragments = given.fragments if way == "streaming" else 1
    delay = given.delay if way == "streaming" else 0
    diloco = hvd.DiLoCo(
        model, optimizer, sync_every=given.every, num_fragments=fragments, fragment_sync_delay=delay, compression=codec
    )
    found: dict[str, list[float]] = {"seconds": [], "exposed": [], "main_cpu": [], "codec": [], "sent": []}
    with diloco:
        for turn in range(given.rounds + 1):
            before, cpu, began = spent(diloco), 0.0, time.perf_counter()
            for step in range(given.every):
                clock.compute(functools.partial(model.change, hvd.rank(), turn) if step == 0 else None)
                cpu -= time.thread_time()
                optimizer.step()
                cpu += time.thread_time()
            after = spent(diloco)
            if turn:  # the first makes plans
                found["seconds"].append(time.perf_counter() - began)
                found["main_cpu"].append(cpu)
                for key in before:
                    found[key].append(after[key] - before[key])
    return found


class Layer(torch.autograd.Function):
    """A layer whose backward sleeps, and then has a gradient for its weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, seconds: float) -> Any:
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return outputs[0], ctx.gradient.clone(), None, None


class Layers(torch.nn.Module):
    """A layer for each weight of a model, whose backward takes `seconds`."""

    def __init__(self, model: Model, seconds: float) -> None:
        super().__init__()
        self.weights = model.weights
        self._seconds = seconds
        self._gradients = []
        for place, weight in enumerate(model.weights):
            generator = torch.Generator().manual_seed(100 * place + hvd.rank())
            self._gradients.append(torch.randn(weight.shape, generator=generator))

    def forward(self) -> torch.Tensor:
        x = torch.ones(1, requires_grad=True)
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            x = Layer.apply(x, weight, gradient, self._seconds)
        return x


def by_steps(contender: str, given: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Gradients in each step, which are sent while the backward pass goes on: `every:CODEC`, or `hook:` and one of
    PyTorch's hooks of DDP.
    """
    way, _, what = contender.partition(":")
    layers: torch.nn.Module = Layers(model, given.compute / given.every / TENSORS)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
    if way == "hook":
        layers = with_hook(layers, what)
    else:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=what)
    seconds = []
    before = 3 if way == "hook" else 2  # they make plans and take memory
    for _ in range(before + min(given.every, STEPS)):
        began = time.perf_counter()
        optimizer.zero_grad()
        layers().backward()
        if way != "hook":
            optimizer.synchronize()
        seconds.append(given.every * (time.perf_counter() - began))
    return {"seconds": seconds[before:]}


def spent(diloco: Any) -> dict[str, float]:
    """What this rank has spent so far."""
    works = [work for codec in hvd.metrics().codecs.values() for work in (codec.encode, codec.merge, codec.decode)]
    return {
        "exposed": diloco.rounds.metrics.exposed_seconds,
        "codec": sum(work.seconds for work in works),
        "sent": float(hvd.counters()["sent_bytes"]),
    }


def by_ddp(given: argparse.Namespace, model: Model, clock: Clock) -> dict[str, Any]:
    """Steps whose gradients gloo averages, as DDP does: the round has as many steps, of which one is measured."""
    seconds = []
    for _ in range(2):
        dist.barrier()
        began = time.perf_counter()
        clock.compute()
        work = [dist.all_reduce(weight.detach(), async_op=True) for weight in model.weights]
        for one in work:
            one.wait()
        seconds.append(given.every * (time.perf_counter() - began))
    return {"seconds": seconds[1:]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", required=True)
    parser.add_argument("--numel", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--compute", type=float, required=True, help="seconds of a round")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--fragments", type=int, required=True)
    parser.add_argument("--delay", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, clock = Model(int(given.numel)), Clock(given.compute / given.every)
    hvd.init()
    by_gloo = given.contender == "ddp" or given.contender.startswith("hook:")
    if by_gloo:
        rendezvous = os.environ["STEP_TIME_RENDEZVOUS"]
        dist.init_process_group("gloo", init_method=rendezvous, rank=hvd.rank(), world_size=hvd.size())
    if given.contender == "ddp":
        found = by_ddp(given, model, clock)
    elif given.contender == "torchft":

        def step(turn: int, number: int, optimizer: torch.optim.Optimizer) -> None:
            clock.compute((lambda: model.change(hvd.rank(), turn)) if number == 0 else None)
            optimizer.step()

        found = {"seconds": beside_torchft.rounds(model, given.every, given.rounds, step)}
    elif given.contender.startswith(("every:", "hook:")):
        found = by_steps(given.contender, given, model)
    else:
        found = by_rounds(given.contender, given, model, clock)
    medians = {key: statistics.median(values) for key, values in found.items()}
    everyones = hvd.allgather_object(medians)
    if hvd.rank() == 0:
        worst = {key: max(one[key] for one in everyones) for key in medians}
        worst["numel"] = sum(weight.numel() for weight in model.weights)
        worst["shape"] = list(model.weights[0].shape)
        given.out.write_text(json.dumps({"slowest": worst, "ranks": everyones}))
    if by_gloo:
        dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()

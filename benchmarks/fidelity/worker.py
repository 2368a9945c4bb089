"""One of the workers that train one task in one way, from one seed. Rank 0 writes the losses."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import casync.torch as hvd
import torch
import torch.distributed as dist

from benchmarks.fidelity.methods import METHODS, Method
from benchmarks.fidelity.tasks import TASKS, Task, cosine
from benchmarks.pytorch_hooks import with_hook

POINTS = 20  # of a curve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    task = TASKS[given.task]()
    method = METHODS[given.method]
    if method.hook:
        store = f"file://{given.out.with_suffix('.store')}"
        dist.init_process_group("gloo", init_method=store, rank=hvd.rank(), world_size=hvd.size())
    result = train(task, method, given.seed, given.steps or task.steps)
    if hvd.rank() == 0:
        given.out.write_text(json.dumps(result))
    if method.hook:
        dist.destroy_process_group()
    hvd.shutdown()


def optimizers_of(method: Method, model: torch.nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Return the optimizers of the parameters. Muon takes matrices alone, so AdamW has the others."""
    parameters = list(model.parameters())
    if method.optimizer == "Muon":
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        others = [parameter for parameter in parameters if parameter.ndim != 2]
        return [torch.optim.Muon(matrices, lr=lr), torch.optim.AdamW(others, lr=lr / 10, fused=True)]
    if method.optimizer == "AdamW":
        return [torch.optim.AdamW(parameters, lr=lr, fused=True)]
    return [torch.optim.SGD(parameters, lr=lr, momentum=0.9 if method.optimizer == "momentum" else 0.0)]


def train(task: Task, method: Method, seed: int, steps: int) -> dict[str, Any]:
    """The losses of one training: of the test batches, with the parameters that all ranks share."""
    torch.manual_seed(seed)  # all ranks begin alike, and the same for every method
    model = task.model()
    test = task.test()
    data = torch.Generator().manual_seed(1000 * seed + hvd.rank())
    lr = task.lr[method.optimizer] * method.lr
    optimizers: list[Any] = optimizers_of(method, model, lr)
    trained: torch.nn.Module = model
    if method.hook:
        trained = with_hook(model, method.hook, method.warmup)
    is_reduced = not method.hook and (not method.every or method.warmup > 0)
    if is_reduced:
        compression = "none" if method.every else method.codec
        optimizers = [
            hvd.DistributedOptimizer(one, model.named_parameters(), compression=compression) for one in optimizers
        ]
    rounds: Any = None
    if method.every:
        settings: dict[str, Any] = {"compression": method.codec, "warmup_steps": method.warmup}
        if method.outer:
            outer_lr, momentum = method.outer
            rounds = hvd.DiLoCo(
                model, optimizers[0],
                torch.optim.SGD(model.parameters(), lr=outer_lr, momentum=momentum, nesterov=momentum > 0),
                method.every, num_fragments=method.fragments, fragment_sync_delay=method.delay, **settings,
            )  # fmt: skip
        else:
            rounds = hvd.LocalSGD(model, optimizers[0], method.every, delay=method.delay, **settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: cosine(step, steps)) for one in optimizers]
    curve: list[tuple[int, float]] = []
    began, evaluating = time.perf_counter(), 0.0
    with rounds or contextlib.nullcontext():
        for step in range(1, steps + 1):
            loss = task.loss(trained, task.batch(data))
            for one in optimizers:
                one.zero_grad()
            loss.backward()
            if is_reduced:
                for one in optimizers:
                    one.synchronize()
            if task.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip * method.clip)
            for one, schedule in zip(optimizers, schedules, strict=True):
                with one.skip_synchronize() if is_reduced else contextlib.nullcontext():
                    one.step()
                schedule.step()
            if step % max(1, steps // POINTS) == 0 and step < steps:
                paused = time.perf_counter()
                with rounds.global_parameters() if rounds else contextlib.nullcontext():
                    curve.append((step, evaluate(task, model, test[:4])))
                evaluating += time.perf_counter() - paused
    seconds = time.perf_counter() - began
    curve.append((steps, evaluate(task, model, test)))
    return {
        "loss": curve[-1][1], "curve": curve, "seconds": seconds, "evaluating": evaluating, "steps": steps, "lr": lr,
        "sent_bytes": hvd.counters()["sent_bytes"],
    }  # fmt: skip


def evaluate(task: Task, model: torch.nn.Module, test: list[Any]) -> float:
    """The mean loss, on rank 0; the others wait at the next synchronisation."""
    if hvd.rank():
        return 0.0
    model.eval()
    with torch.no_grad():
        loss = torch.stack([task.loss(model, batch) for batch in test]).mean()
    model.train()
    return float(loss)


if __name__ == "__main__":
    main()

"""The gradients of several workers in a training, as arrays: one for each worker and step that is looked at."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from benchmarks.fidelity.tasks import TASKS, cosine

__all__ = ["gradients_of"]


def gradients_of(workers: int, steps: Collection[int], seed: int = 0) -> dict[int, np.ndarray]:
    """Train the transformer of `benchmarks.fidelity` on the mean gradient, and return those of all workers by step.

    Each worker has batches of its own. An array is workers x weights, float32, all weights of the model in one row.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    task = TASKS["text"]()
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr["AdamW"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, task.steps))
    data = [torch.Generator().manual_seed(1000 * seed + worker) for worker in range(workers)]
    found = {}
    for step in range(max(steps) + 1):
        rows = np.stack([_gradient(model, task.loss(model, task.batch(own))) for own in data])
        if step in steps:
            found[step] = rows
        mean = torch.from_numpy(rows.mean(0))
        for parameter, part in zip(
            model.parameters(), mean.split([one.numel() for one in model.parameters()]), strict=True
        ):
            parameter.grad = part.view_as(parameter)
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        schedule.step()
    return found


def _gradient(model: torch.nn.Module, loss: torch.Tensor) -> np.ndarray:
    model.zero_grad()
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    row: np.ndarray = torch.cat([one.flatten() for one in gradients if one is not None]).numpy()
    return row

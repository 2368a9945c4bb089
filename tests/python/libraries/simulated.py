"""All ranks of a local SGD or DiLoCo in one process: what the scripts beside it compare theirs with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

INPUTS, OUTPUTS, ROWS = 12, 3, 4
Batch = tuple[torch.Tensor, torch.Tensor]


def samples(count: int) -> Batch:
    numbers = torch.Generator().manual_seed(5)
    x = torch.randn(count, INPUTS, generator=numbers)
    return x, torch.tanh(x @ torch.randn(INPUTS, OUTPUTS, generator=numbers))


def model(seed: int) -> torch.nn.Module:
    """With a frozen layer, and running means."""
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, OUTPUTS)
    )
    layers[0].requires_grad_(False)
    return layers


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1, momentum=0.9)


def share(data: Batch, rank: int, size: int, rows: int = ROWS) -> list[Batch]:
    """What an unshuffled DistributedSampler gives a rank."""
    return list(zip(*(column[rank::size].split(rows) for column in data), strict=True))


def train(
    batches: Sequence[Sequence[Batch]],
    every: int,
    outer: tuple[float, float] = (1.0, 0.0),
    *,
    seed: int = 0,
    passes: int = 1,
    make: Callable[[torch.nn.Module], Any] = sgd,
    skips: Callable[[int, int], bool] = lambda rank, step: False,
) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """What the ranks end with, and the global parameters after each round. `batches` are those of each rank, `outer` is
    rate and momentum. `passes` batches are a step, and a step that `skips` is none.
    """
    models = [model(seed) for _ in batches]
    optimizers = [make(each) for each in models]
    anchor = {name: value.detach().clone() for name, value in models[0].state_dict().items()}
    velocity = {name: torch.zeros_like(value) for name, value in anchor.items()}
    rounds: list[dict[str, torch.Tensor]] = []
    trained = {name for name, value in models[0].named_parameters() if value.requires_grad}

    def round_of_all() -> None:
        states = [each.state_dict() for each in models]
        for name in anchor:
            values = torch.stack([state[name].double() for state in states])
            if name in trained:
                change = anchor[name].double() - values.mean(0)
                velocity[name] = outer[1] * velocity[name] + change
                anchor[name] = (anchor[name] - outer[0] * (change + outer[1] * velocity[name])).float()
            else:
                anchor[name] = values.mean(0) if "running" in name else values.amax(0).to(anchor[name].dtype)
        for each in models:
            each.load_state_dict(anchor)
        rounds.append(copy.deepcopy(anchor))

    steps = 0
    for number in range(0, len(batches[0]) - passes + 1, passes):
        for rank, own in enumerate(batches):
            optimizers[rank].zero_grad()
            for x, y in own[number : number + passes]:
                (F.mse_loss(models[rank](x), y) / passes).backward()
            if not skips(rank, number // passes):
                optimizers[rank].step()
        steps += 1
        if steps % every == 0:
            round_of_all()
    if steps % every:
        round_of_all()
    return anchor, rounds


def apart(one: Any, other: Any) -> float:
    """The largest difference of two state_dicts, but for counts of batches."""
    assert set(one) == set(other), set(one) ^ set(other)
    return max(
        float((one[name].double() - other[name].double()).abs().max()) for name in one if "num_batches" not in name
    )

"""Training with local steps for tests on several ranks, and all ranks of it in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from support.training import batch_of, make_model, step

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD whose state is none."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam, whose state is each rank's own."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: Iterable[int]) -> None:
    """Steps of `rank`, on its own data."""
    for number in steps:
        step(model, optimizer, batch_of(number, rank))


@torch.no_grad()
def average(models: Sequence[nn.Module], weights: Sequence[float] | None = None) -> None:
    """Give all models the mean of their parameters, which is computed in float64."""
    weights = [1.0] * len(models) if weights is None else weights
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        weighted = [weight * one.double() for weight, one in zip(weights, parameters, strict=True)]
        mean = torch.stack(weighted).sum(0) / sum(weights)
        for one in parameters:
            one.copy_(mean)


def simulated(
    size: int,
    steps: int,
    every: int,
    *,
    make: Callable[[], nn.Module] = make_model,
    optimizer_of: MakeOptimizer = sgd,
    local_step: Callable[[nn.Module, torch.optim.Optimizer, int, int], None] | None = None,
) -> list[nn.Module]:
    """The models of `size` ranks after so many steps of local SGD. `local_step` takes model, optimizer, rank and step;
    None: as `train` does.
    """
    models = [make() for _ in range(size)]
    optimizers = [optimizer_of(model) for model in models]
    for number in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if local_step is None:
                train(model, optimizer, rank, [number])
            else:
                local_step(model, optimizer, rank, number)
        if (number + 1) % every == 0:
            average(models)
    return models

"""A small training job for tests on several ranks: its session, model, data, optimizer and step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casync.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, torch.Tensor]
ROWS = 8  # of a batch, for each rank


def new_session(**arguments: Any) -> None:
    """Leave the session of the test, and open one with `arguments`."""
    hvd.shutdown()
    hvd.init(timeout_s=20.0, **arguments)


def make_model(seed: int = 0) -> nn.Sequential:
    """Six parameters; some are large enough for a codec, and some are not."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 30), nn.ReLU(), nn.Linear(30, 4))


def draw(rows: int, generator: torch.Generator) -> Batch:
    """Inputs and labels for `make_model`."""
    return torch.randn(rows, 20, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


def make_data(size: int, steps: int = 5) -> list[Batch]:
    """Per step the whole batch, ROWS per rank."""
    generator = torch.Generator().manual_seed(1)
    return [draw(ROWS * size, generator) for _ in range(steps)]


def share(batch: Batch, rank: int) -> Batch:
    """The rows of `rank` in a whole batch."""
    own = slice(ROWS * rank, ROWS * (rank + 1))
    return batch[0][own], batch[1][own]


def batch_of(step: int, rank: int) -> Batch:
    """What `rank` sees in a step, where nobody needs the whole batch."""
    return draw(ROWS, torch.Generator().manual_seed(100 * step + rank))


def wrap(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, lr: float = 0.1, **arguments: Any) -> Any:
    """`optimizer`, or SGD with momentum, as a DistributedOptimizer."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **arguments)


def step(model: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One step of training."""
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()

"""The model and the data of most programs, in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

INPUTS, HIDDEN, OUTPUTS = 16, 24, 4
ROWS = 8  # of a batch, for each rank

Batch = tuple[torch.Tensor, torch.Tensor]


def net(seed: int = 0) -> nn.Sequential:
    """A script seeds its ranks differently, and has rank 0's parameters everywhere: by a broadcast, or by DDP."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))


def whole(steps: int, size: int, rows: int = ROWS, seed: int = 1) -> Iterator[Batch]:
    """Batches of `rows` rows for each rank, one behind the other. The ranks' rows differ in their scale, so no gradient
    is like the mean.
    """
    numbers = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(size, rows, INPUTS, generator=numbers) * (1 + torch.arange(size).view(-1, 1, 1))
        x = x.reshape(size * rows, INPUTS)
        yield x, torch.stack([x[:, 0], x[:, 1] * x[:, 2], x[:, 3].cos(), x[:, 4:8].sum(1)], 1)


def share(batch: Batch, rank: int, size: int) -> Batch:
    x, y = batch
    rows = len(x) // size
    own = slice(rank * rows, (rank + 1) * rows)
    return x[own], y[own]


class Rows(torch.utils.data.Dataset[Batch]):
    """Whole batches, as an item each; workers of a DataLoader make them."""

    def __init__(self, rank: int, size: int, steps: int, everybodys: bool) -> None:
        self.rank, self.size, self.steps, self.everybodys = rank, size, steps, everybodys

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, at: int) -> Batch:
        batch = list(whole(self.steps, self.size))[at]
        return batch if self.everybodys else share(batch, self.rank, self.size)

"""Programs of which one rank fails. Each is a job of its own, and ends as a script does."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.python.programs.cells import right
from tests.python.programs.data import net
from tests.python.programs.ends import broken, die


def train(door: Any, fail: Any) -> None:
    model = door.model(net(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for number, (x, y) in enumerate(door.batches(6)):
        optimizer.zero_grad()
        if number == 3 and door.rank == 1:
            fail()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()


@right(
    "an exception on one rank",
    "optimizer hook backend fsdp2 local accelerate",
    apart=True,
    ends=(1, 1),
    says="rank 1: ValueError: the labels of rank 1",
)
def exception(door: Any) -> dict[str, Any]:
    train(door, broken)
    return {}


@right(
    "a rank that is killed",
    "optimizer hook backend fsdp2 local accelerate",
    apart=True,
    ends=(1, -9),
    says=r"PeerFailureError.*rank 1",
)
def killed(door: Any) -> dict[str, Any]:
    train(door, die)
    return {}

"""Programs that are written in another way for FSDP2 than for DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.python.programs.cells import right
from tests.python.programs.data import OUTPUTS, net
from tests.python.programs.models import Experts
from tests.python.programs.training import made, step


@right("parameters that some ranks do not use", "fsdp2", beside="gloo")
def unused_by_some(door: Any) -> dict[str, Any]:
    """The model is one unit, since all ranks have to gather the same units."""
    model = door.unit(Experts(door.seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(door.batches(6)):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x, (number + door.rank) % 2), y))
        optimizer.step()
    return door.weights(model)


@right("parameters that are replaced by others", "fsdp2", codec="alike")
def replaced(door: Any) -> dict[str, Any]:
    """Another head on the same body."""
    model, optimizer = made(door)
    for number, batch in enumerate(door.batches(6)):
        if number == 3:
            torch.manual_seed(3)
            model[2] = door.unit(nn.Linear(model[2].in_features, OUTPUTS))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("a script's own hooks on gradients", "fsdp2", codec="alike")
def own_hooks(door: Any) -> dict[str, Any]:
    """Those that run when a gradient has been put into its parameter, which is the mean already."""

    def halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    model, optimizer = made(door)
    model[0].weight.register_post_accumulate_grad_hook(halve)
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("moving averages of the weights (AveragedModel)", "fsdp2", codec="alike")
def averaged(door: Any) -> dict[str, Any]:
    """Of each rank's part. AveragedModel wants a copy of the model, which FSDP2 refuses to make."""
    model, optimizer = made(door, net(door.seed))
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for batch in door.batches(6):
        step(door, model, optimizer, batch)
        torch._foreach_lerp_(average, [parameter.detach() for parameter in model.parameters()], 0.3)
    return {f"average{n}": getattr(one, "full_tensor", lambda one=one: one)() for n, one in enumerate(average)}

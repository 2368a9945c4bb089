"""Momentum that a codec takes over (DGC: momentum correction, Lin et al. 2018, section 3.2).

The codec keeps the velocity of what it has not sent, so the optimizer must not have one of its own: SGD's momentum is
switched off in its groups, told to the core with every gradient, and applied here to gradients that went uncompressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from casync.collectives.gradient_submits import OptimizerTerms
from casync.errors import InvalidArgumentError

__all__ = ["Momentum"]


class Momentum:
    """The momentum of an optimizer's groups, or the one that was given in its place."""

    def __init__(self, optimizer: torch.optim.Optimizer, given: float | None) -> None:
        """Raises `InvalidArgumentError` for an optimizer whose momentum is none that a codec can take over."""
        self._optimizer = optimizer
        self._given = given
        self._taken: dict[int, tuple[float, bool]] = {}
        if given is None and not isinstance(optimizer, torch.optim.SGD):
            raise InvalidArgumentError(
                f"the codec takes over the optimizer's momentum, and {type(optimizer).__name__} is no torch.optim.SGD: "
                "use SGD, or say momentum=0 if there is none to take over"
            )
        if given is None and any(group["dampening"] for group in optimizer.param_groups):
            raise InvalidArgumentError("the codec takes over SGD's momentum, which must be without dampening")
        self.take()

    def take(self) -> None:
        """Switch off what the groups have; a scheduler may have set it anew."""
        if self._given is not None:
            return
        for index, group in enumerate(self._optimizer.param_groups):
            if group["momentum"]:
                self._taken[index] = (group["momentum"], group["nesterov"])
                group["momentum"], group["nesterov"] = 0, False

    def terms(self, group: int) -> OptimizerTerms:
        lr = float(self._optimizer.param_groups[group]["lr"])
        if self._given is not None:
            return OptimizerTerms(lr, self._given, False)
        return OptimizerTerms(lr, *self._taken.get(group, (0.0, False)))

    def apply(self, parameter: torch.nn.Parameter, group: int, loss_scale: float = 1.0) -> None:
        """To the mean gradient of a parameter that went uncompressed: as SGD does, in the place where SGD keeps it.

        The velocity is without the loss scale, and does not hear of a gradient with which a GradScaler skips the step.
        """
        _, momentum, nesterov, _ = self.terms(group)
        gradient = parameter.grad
        if not momentum or gradient is None:
            return
        if loss_scale != 1.0:
            if not gradient.isfinite().all():
                return
            gradient.div_(loss_scale)
        kept = self._optimizer.state[parameter]
        velocity = kept.get("momentum_buffer")
        if velocity is None:
            velocity = kept["momentum_buffer"] = gradient.clone()
        else:
            velocity.mul_(momentum).add_(gradient)
        if nesterov:
            gradient.add_(velocity, alpha=momentum)
        else:
            gradient.copy_(velocity)
        if loss_scale != 1.0:
            gradient.mul_(loss_scale)

    def restored(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """A state_dict with the groups as the user made them."""
        groups = [dict(group) for group in shared["param_groups"]]
        for index, (momentum, nesterov) in self._taken.items():
            groups[index].update(momentum=momentum, nesterov=nesterov)
        return {**shared, "param_groups": groups}

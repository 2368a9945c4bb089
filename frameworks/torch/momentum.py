"""Momentum that a codec takes over (DGC: momentum correction, Lin et al. 2018, section 3.2).

The codec keeps the velocity of what it has not sent, so the optimizer must not have one of its own: SGD's momentum is
switched off in its groups, told to the core with every gradient, and applied here to gradients that went uncompressed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from casync.collectives.gradient_submits import OptimizerSettings
from casync.errors import InvalidArgumentError

from .ownership import alive

__all__ = ["Momentum"]


class Momentum:
    """The momentum of an optimizer's groups, or the one that was given in its place."""

    def __init__(self, optimizer: torch.optim.Optimizer, given: float | None) -> None:
        """Raises `InvalidArgumentError` for an optimizer whose momentum is none that a codec can take over."""
        self._optimizer_ref = weakref.ref(optimizer)  # which has this object
        self._given = given
        # For each group that had one: a pair of momentum and nesterov, by the group's id, and the group itself.
        self._taken: dict[int, tuple[float, bool]] = {}
        self._groups: list[dict[str, Any]] = []
        if given is None and not isinstance(optimizer, torch.optim.SGD):
            raise InvalidArgumentError(
                f"the codec takes over the optimizer's momentum, and {type(optimizer).__name__} is no torch.optim.SGD: "
                "use SGD, or say momentum=0 if there is none to take over"
            )
        if given is None and any(group["dampening"] for group in optimizer.param_groups):
            raise InvalidArgumentError("the codec takes over SGD's momentum, which must be without dampening")
        self.take()

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return alive(self._optimizer_ref)

    def take(self) -> None:
        """Switch off what the groups have; a scheduler may have set it anew."""
        if self._given is not None:
            return
        self._groups = list(self._optimizer.param_groups)
        ids = {id(group) for group in self._groups}
        self._taken = {key: taken for key, taken in self._taken.items() if key in ids}
        for group in self._groups:
            if group["momentum"]:
                self._taken[id(group)] = self._as_made(group)
                group["momentum"], group["nesterov"] = 0, False

    def _as_made(self, group: Mapping[str, Any]) -> tuple[float, bool]:
        """The momentum of a group, and whether it is Nesterov's, as the user has it. A scheduler that sets the momentum
        says nothing of Nesterov's, which was switched off here.
        """
        taken, is_nesterov = self._taken.get(id(group), (0.0, False))
        return group["momentum"] or taken, group["nesterov"] or is_nesterov

    def give_back(self) -> None:
        """Set the groups to what the user made them."""
        for group in self._groups:
            if id(group) in self._taken:
                group["momentum"], group["nesterov"] = self._as_made(group)

    def copy_from(self, other: Momentum) -> None:
        """Take over what `other` has taken from the groups of which ours are copies."""
        for group, copied in zip(other._optimizer.param_groups, self._optimizer.param_groups, strict=True):
            if (taken := other._taken.get(id(group))) is not None:
                self._taken[id(copied)] = taken

    def terms(self, index: int) -> OptimizerSettings:
        """Return the settings of the group with this number."""
        group = self._optimizer.param_groups[index]
        lr = float(group["lr"])
        if self._given is not None:
            return OptimizerSettings(lr, self._given, False)
        return OptimizerSettings(lr, *self._taken.get(id(group), (0.0, False)))

    def apply(self, parameter: torch.nn.Parameter, group: int, loss_scale: float = 1.0) -> None:
        """Apply it to the mean gradient of a parameter that went uncompressed, as SGD does, and keep it where SGD does.

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
        for restored, group in zip(groups, self._optimizer.param_groups, strict=True):
            if id(group) in self._taken:
                restored["momentum"], restored["nesterov"] = self._as_made(group)
        return {**shared, "param_groups": groups}

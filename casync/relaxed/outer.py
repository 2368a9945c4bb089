"""Outer optimizers: how the mean change of a round becomes a change of the global parameters.

The mean change is the global parameters minus the mean of the ranks' own, so that it has the sign of a gradient. All
ranks compute the same from the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol

from casync.errors import InvalidArgumentError
from casync.tensors.adaptor import T, Tensors

__all__ = ["Averaging", "Nesterov", "Outer"]


class Outer(Protocol[T]):
    """An outer optimizer, as the rounds use it."""

    def take(self, tensors: Tensors[T], anchors: dict[str, T]) -> None:
        """Be the optimizer of these global parameters, by name; it may move them. Called once, before all else."""

    def describe(self) -> str:
        """Return its settings, in which the ranks must agree."""

    def step(self, names: Sequence[str], changes: Sequence[T]) -> None:
        """Change the global parameters of these names, which are those of one fragment, in place."""

    def state_dict(self) -> dict[str, Any]:
        """Return what it keeps from round to round, as `load_state_dict` takes it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave, on this rank or another."""


class Averaging(Generic[T]):
    """The global parameters become the mean of the ranks' own: local SGD."""

    def take(self, tensors: Tensors[T], anchors: Mapping[str, T]) -> None:
        self._tensors, self._anchors = tensors, anchors

    def describe(self) -> str:
        return "averaging"

    def step(self, names: Sequence[str], changes: Sequence[T]) -> None:
        for name, change in zip(names, changes, strict=True):
            self._tensors.accumulate(self._anchors[name], -1.0, change)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise InvalidArgumentError(
                f"the state is of another outer optimizer, which kept {', '.join(map(str, state))}, and averaging "
                "keeps nothing"
            )


class Nesterov(Generic[T]):
    """SGD with Nesterov's momentum, as `torch.optim.SGD(nesterov=True)` has it: v <- momentum v + D, and then
    a <- a - lr (D + momentum v). DiLoCo's outer optimizer (Douillard et al. 2023, algorithm 1).

    Args:
        lr: at most 1 in practice. DiLoCo has 0.7.
        momentum: 0 to 1. DiLoCo has 0.9, which needs some 50 rounds to pay.
    """

    def __init__(self, lr: float = 0.7, momentum: float = 0.9) -> None:
        if not lr > 0:
            raise InvalidArgumentError(f"lr={lr!r}: it must be greater than 0")
        if not 0 <= momentum < 1:
            raise InvalidArgumentError(f"momentum={momentum!r}: it must be from 0 on and less than 1")
        self.lr = lr
        self.momentum = momentum
        self._velocities: dict[str, T] = {}

    def take(self, tensors: Tensors[T], anchors: Mapping[str, T]) -> None:
        self._tensors, self._anchors = tensors, anchors

    def describe(self) -> str:
        return f"Nesterov(lr={self.lr}, momentum={self.momentum})"

    def step(self, names: Sequence[str], changes: Sequence[T]) -> None:
        add = self._tensors.accumulate
        for name, change in zip(names, changes, strict=True):
            anchor = self._anchors[name]
            if self.momentum:
                velocity = self._velocities.get(name)
                if velocity is None:
                    velocity = self._velocities[name] = self._tensors.scaled(anchor, 0.0)
                else:
                    add(velocity, self.momentum - 1.0, velocity)
                add(velocity, 1.0, change)
                add(anchor, -self.lr * self.momentum, velocity)
            add(anchor, -self.lr, change)

    def state_dict(self) -> dict[str, Any]:
        return {"velocities": dict(self._velocities)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        velocities = state["velocities"]
        if unknown := sorted(velocities.keys() - self._anchors.keys()):
            raise InvalidArgumentError(
                f"the state has velocities of parameters that there are not: {', '.join(unknown)}"
            )
        self._velocities = {}
        for name, values in velocities.items():
            self._velocities[name] = self._tensors.copy(self._anchors[name])
            self._tensors.assign(self._velocities[name], values)

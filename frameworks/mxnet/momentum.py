"""Momentum that a codec takes over (DGC: momentum correction, Lin et al. 2018, section 3.2).

The codec keeps the velocity of what it has not sent, so the optimizer must not have one of its own. It is switched off
there, told to the core with every gradient, and applied here to gradients that went uncompressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casync.collectives.gradient_submits import OptimizerSettings
from casync.errors import InvalidArgumentError

from .loading import mx
from .tensors import NDArray

__all__ = ["Momentum"]


class Momentum:
    """SGD's or NAG's, or the one that was given in its place."""

    def __init__(self, optimizer: Any, given: float | None) -> None:
        """Raises `InvalidArgumentError` for an optimizer whose momentum is none that a codec can take over."""
        if given is None and type(optimizer) not in (mx.optimizer.SGD, mx.optimizer.NAG):
            raise InvalidArgumentError(
                f"the codec takes over the optimizer's momentum, and {type(optimizer).__name__} is neither SGD nor "
                "NAG: use one of them, or say momentum=0 if there is none to take over"
            )
        self._given = given
        self._taken = (given or 0.0, False)
        self.velocities: dict[str, NDArray] = {}
        """The velocities of parameters whose gradients go uncompressed, without the loss scale."""
        self._take(optimizer)

    def _take(self, optimizer: Any) -> None:
        if self._given is None and optimizer.momentum:
            self._taken = (optimizer.momentum, isinstance(optimizer, mx.optimizer.NAG))
            optimizer.momentum = 0.0

    def terms(self, optimizer: Any, loss_scale: float) -> OptimizerSettings:
        """Return what the codec must know in this step. What the program has set anew is taken over too. `load_states`
        makes the trainer a new optimizer, as it was saved: without momentum.
        """
        self._take(optimizer)
        return OptimizerSettings(float(optimizer.learning_rate), *self._taken, loss_scale)

    def apply(self, name: str, gradient: NDArray, loss_scale: float) -> None:
        """Apply it to the mean gradient of a parameter that went uncompressed. With a loss scale it waits, because the
        velocity must not hear of a gradient with which the step is left out.
        """
        momentum, nesterov = self._taken
        if self._given is not None or not momentum:
            return
        if loss_scale != 1.0 and not mx.nd.all_finite(gradient.as_nd_ndarray()).asscalar():
            return
        with mx.autograd.pause():
            gradient /= loss_scale
            if name not in self.velocities:
                self.velocities[name] = gradient.zeros_like()
            velocity = self.velocities[name]
            velocity *= momentum
            velocity += gradient
            gradient[:] = (gradient + momentum * velocity if nesterov else velocity) * loss_scale

    def load(self, saved: Mapping[str, Any]) -> None:
        """Load the velocities of a checkpoint, which are NumPy arrays."""
        self.velocities = {name: mx.nd.array(values, dtype=values.dtype) for name, values in saved.items()}

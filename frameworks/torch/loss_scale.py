"""The loss scale of a GradScaler (AMP), which gradients carry while they are synchronised.

It changes between steps. What a codec keeps of a gradient until the next step is kept without it, so the core is told
the scale with every gradient; and a scaler whose scale is not known here is refused, not ignored.
"""

from __future__ import annotations

import gc
import logging

import torch
from casync.codecs import specs as codecs
from casync.config.rules import Rules
from casync.errors import InvalidArgumentError

__all__ = ["LossScale"]

_LOG = logging.getLogger("casync")


class LossScale:
    """Raises `InvalidArgumentError` for what is no scaler."""

    def __init__(self, scaler: torch.amp.GradScaler | None, rules: Rules) -> None:
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise InvalidArgumentError(
                f"grad_scaler={type(scaler).__name__} is no torch.amp.GradScaler: give the one whose scale() the loss "
                "goes through, or leave it out"
            )
        self._scaler = scaler
        self.is_told = False
        """Whether the core must be told the scale of each gradient."""
        self.set_rules(rules)

    def set_rules(self, rules: Rules) -> None:
        """Have these codecs from now on. What those before have kept is still to be sent, in units of the loss."""
        self._keeping = next((codec for _, codec in rules.pairs if codecs.keeps_state(codec)), None)
        self.is_told = self.is_told or (self._scaler is not None and self._keeping is not None)

    def now(self) -> float:
        """The factor of the gradients of this step; 1 if there is no scaler, or it is not enabled."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def check(self, taker: str) -> None:
        """Raise `InvalidArgumentError` if a scaler is at work that `taker` was not given, and its scale matters."""
        if self._keeping is not None and self._scaler is None:
            raise InvalidArgumentError(self._advice(taker))

    def look_for_another(self, taker: str) -> None:
        """Warn if this process has a scaler in use that `taker` was not given. For callers that no scaler asks, such as
        hooks of DDP.
        """
        if self._keeping is None or self._scaler is not None:
            return
        for holder in gc.get_objects():
            if issubclass(type(holder), torch.amp.GradScaler) and holder.is_enabled():
                _LOG.warning("this program has a GradScaler. If it scales these gradients: %s", self._advice(taker))
                return

    def _advice(self, taker: str) -> str:
        return (
            f"compression {self._keeping!r} keeps what it has not sent until the next step, when a GradScaler may have "
            f"another scale: give it the scaler, as {taker}(..., grad_scaler=scaler)"
        )

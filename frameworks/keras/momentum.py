"""Momentum that a codec takes over (DGC: momentum correction, Lin et al. 2018, section 3.2).

The codec keeps the velocity of what it has not sent, so the optimizer must not add one of its own for the same
variable. Others keep Keras's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from casync.codecs import specs as codecs
from casync.collectives.settings import Settings
from casync.errors import InvalidArgumentError
from casync.session import default

__all__ = ["Momentum"]


class _WithoutMomentum:
    """The class that is put in front of SGD. Variables whose velocity a codec keeps step without momentum."""

    momentum: float
    nesterov: bool

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        with self._of(variable):
            super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]

    def _parallel_update_step(self, grads: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> None:
        """Step with all variables at once, as Keras does with torch. Those whose momentum is taken go apart."""
        for one in (True, False):
            pairs = [pair for pair in zip(grads, variables, strict=True) if self._takes(pair[1]) == one]
            if pairs:
                gradients, of = zip(*pairs, strict=True)
                with self._of(of[0]):
                    super()._parallel_update_step(gradients, of, learning_rate)  # type: ignore[misc]

    def _takes(self, variable: Any) -> bool:
        (state,) = self._casync  # type: ignore[attr-defined]
        taken: bool = state.momentum.takes(variable)
        return taken

    @contextlib.contextmanager
    def _of(self, variable: Any) -> Iterator[None]:
        own = self.momentum, self.nesterov
        if self._takes(variable):
            self.momentum, self.nesterov = 0.0, False
        try:
            yield
        finally:
            self.momentum, self.nesterov = own


class Momentum:
    """The momentum of SGD, or the one that was given in its place."""

    def __init__(self, optimizer: Any, settings: Settings, given: float | None) -> None:
        """Raises `InvalidArgumentError` for an optimizer whose momentum is none that a codec can take over."""
        if given is None and not isinstance(optimizer, keras.optimizers.SGD):
            raise InvalidArgumentError(
                f"the codec takes over the optimizer's momentum, and {type(optimizer).__name__} is no "
                "keras.optimizers.SGD: use SGD, or say momentum=0 if there is none to take over"
            )
        self._given = given
        self._settings = settings
        self.bases = () if given is not None else (_WithoutMomentum,)
        self._taken: dict[int, bool] = {}

    def takes(self, variable: Any) -> bool:
        """Whether the codec of this variable's gradient keeps its velocity. Keras steps with the backend's variable."""
        return self._taken.get(id(variable), False)

    def terms(self, optimizer: Any, names: Sequence[str], variables: Sequence[Any]) -> Callable[[str], Any]:
        """Return a function from a gradient's name to what the core must know; None where the codec does not ask."""
        lr = keras.ops.cast(optimizer.learning_rate, "float32")
        own = (optimizer.momentum, float(optimizer.nesterov)) if self._given is None else (self._given, 0.0)
        asked: dict[str, Any] = {}
        for name, variable in zip(names, variables, strict=True):
            is_taken = self._is_taken(name, variable)
            self._taken[id(variable)] = self._taken[id(variable.value)] = is_taken
            if is_taken:
                asked[name] = [lr, *own, 1.0]
        if keras.backend.backend() == "tensorflow":
            return lambda name: keras.ops.stack(asked[name]) if name in asked else None
        return lambda name: [float(number) for number in asked[name]] if name in asked else None

    def _is_taken(self, name: str, variable: Any) -> bool:
        codec = codecs.codec_by_name(self._settings.rules, name, variable.shape)
        if not codecs.takes_momentum(codec):
            return False
        config = default.session_of(self._settings.process_set).config
        return codec.startswith("always(") or math.prod(variable.shape) >= config.min_numel

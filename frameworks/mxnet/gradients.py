"""Gradients of one trainer or optimizer, given to MXNet's engine under their parameters' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from casync.codecs import specs as codecs
from casync.collectives.gradient_submits import GradientSubmits, OptimizerSettings
from casync.collectives.settings import Settings
from casync.errors import NotAvailableError

from .engine import Operation, push
from .loading import mx
from .tensors import LAZY, NDArray

__all__ = ["Gradients", "without_momentum"]


class Gradients(GradientSubmits[NDArray]):
    """Each is reduced in place, as soon as backward has computed it. Nothing here waits for values but `waited`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(LAZY, settings)
        self._arrays: dict[str, NDArray] = {}  # that were given last
        self._is_told = any(codecs.keeps_state(codec) for _, codec in settings.rules.pairs)

    def give(self, named: Sequence[tuple[str, NDArray]], priority: int, terms: OptimizerSettings) -> None:
        """Have the engine reduce these together, when all have been computed.

        Args:
            named: parameters' names, and their gradients.
            priority: of gradients that wait, that with the highest goes first; alike on all ranks.
            terms: how they will be used, for codecs that must know.
        """
        self.know([name for name, _ in named])
        owner, factor = self.session(), self.settings.predivide
        operations = []
        for name, array in named:
            gradient, values = self.by_name[name], LAZY.admit(array)
            if gradient.priority != priority:
                gradient.priority, gradient.session = priority, None  # so that it is registered
            if not self.is_registered(owner, gradient, values.dtype, values.shape, None):
                self.register(owner, gradient, values, values.dtype, values.shape, None)
            told = terms if self._is_told and terms != gradient.terms else None
            gradient.terms = terms
            _multiply(values, 1.0 / factor)
            operations.append(Operation(gradient.registration, values, terms=told))
            self._arrays[name] = values
        push(owner, self.settings.process_set, operations, priority, self.by_name[named[0][0]].tensor)
        for operation in operations:
            _multiply(operation.input, factor)

    def uncompressed(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` whose gradients no codec with momentum carries. Waits for what was given."""
        self.waited()
        plans = self.session().plans()
        return [name for name in names if not codecs.takes_momentum(plans[self.by_name[name].tensor].codec)]

    def waited(self) -> None:
        """Wait until all gradients that were given are reduced. Raises the error that ended one."""
        for values in self._arrays.values():
            values.wait_to_read()

    def saved_state(self) -> dict[str, Any]:
        """Return what codecs keep of these on this rank, by parameter name, as NumPy arrays."""
        self.waited()
        return self.state_dict(self.by_name.values(), np.asarray)

    def load_saved_state(self, names: Sequence[str], saved: Mapping[str, Any] | None) -> None:
        """Put back what `saved_state` gave, for the parameters with these names."""
        self.waited()
        self.know(names)
        self.load_state_dict(self.by_name.values(), saved, np.asarray)


def without_momentum(settings: Settings) -> Settings:
    """Return these settings for a user that cannot reach an optimizer's momentum. Raises `NotAvailableError` for a
    codec that takes it over.
    """
    for _, codec in settings.rules.pairs:
        if codecs.takes_momentum(codec):
            raise NotAvailableError(
                f"compression {codec!r} takes over the optimizer's momentum: use casync.mxnet.DistributedTrainer"
            )
    return settings


def _multiply(values: NDArray, factor: float) -> None:
    if factor != 1.0:
        with mx.autograd.pause():
            values *= factor

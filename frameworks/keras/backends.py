"""How gradients are reduced with Keras's backends: parts of a graph for TensorFlow, tensors with values for torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
from casync.collectives.gradient_submits import GradientSubmits, OptimizerSettings
from casync.collectives.settings import Settings
from casync.errors import NotAvailableError
from casync.tensors.adaptor import about

__all__ = ["Reducer", "check_backend", "reducer_of"]


class Reducer(Protocol):
    """The gradients of one optimizer."""

    def reduce(
        self, names: Sequence[str], gradients: Sequence[Any], terms: Callable[[str], Any] | None = None
    ) -> list[Any]:
        """The reduced gradients in the order given. `terms`: how the gradient of a name will be used, where its codec
        asks for that: learning rate, momentum, whether it is Nesterov's, and the loss scale.
        """


def check_backend() -> None:
    """Raise `NotAvailableError` for a backend that we do not reduce gradients of."""
    if (name := keras.backend.backend()) not in ("tensorflow", "torch"):
        raise NotAvailableError(
            f"Keras runs on {name}, and casync.keras on TensorFlow and torch: set KERAS_BACKEND=tensorflow or torch "
            "before Keras is imported"
        )


def reducer_of(settings: Settings) -> Reducer:
    """Make the reducer for the gradients of one optimizer, with the backend that Keras has."""
    if keras.backend.backend() == "torch":
        return TorchReducer(settings)
    from casync.tensorflow.gradients import GraphGradients

    return GraphGradients(settings, claims=True)


class TorchReducer:
    """Gradients that backward has made, which are all there: they are submitted together, and waited for, in place."""

    def __init__(self, settings: Settings) -> None:
        from casync.torch.tensors import TENSORS

        self._tensors = TENSORS
        self._submits = GradientSubmits(TENSORS, settings)

    def reduce(
        self, names: Sequence[str], gradients: Sequence[Any], terms: Callable[[str], Any] | None = None
    ) -> list[Any]:
        submits, owner = self._submits, self._submits.session()
        submits.know(names)
        submits.check()
        predivide = submits.settings.predivide
        result = []
        for name, gradient in zip(names, gradients, strict=True):
            with about(name):
                result.append(self._own(gradient, 1.0 / predivide))
        handles = []
        try:
            for name, values in zip(names, result, strict=True):
                gradient = submits.by_name[name]
                if values is None:
                    continue
                if not submits.is_registered(owner, gradient, values.dtype, values.shape, values.device):
                    submits.register(owner, gradient, values, values.dtype, values.shape, values.device)
                if terms is not None and (told := terms(name)) is not None:
                    submits.tell(owner, gradient, OptimizerSettings(*told))
                handles.append(submits.submit(owner, gradient, values, wake=False))
        finally:
            owner.synchronize_all(handles)
        return [None if values is None else self._own(values, predivide) for values in result]

    def _own(self, gradient: Any, factor: float) -> Any:
        """The gradient times the factor, in memory of its own where that is not 1."""
        if gradient is None:
            return None
        admitted = self._tensors.admit(gradient.detach())
        return self._tensors.contiguous(admitted) if factor == 1.0 else self._tensors.scaled(admitted, factor)

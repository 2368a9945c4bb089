"""Local SGD and DiLoCo of models of Keras: for loops of one's own here, for `fit` in `callbacks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from casync.numpy.tensors import TENSORS

import keras
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.relaxed import local_steps
from casync.relaxed.fragment import Fragment

from .names import names_of

__all__ = ["DiLoCo", "LocalSGD"]


class Held:
    """A variable of any backend. What is read is a copy in the host's memory."""

    def __init__(self, name: str, variable: Any) -> None:
        self.name, self._variable = name, variable

    def read(self) -> Any:
        return np.array(keras.ops.convert_to_numpy(self._variable))

    def write(self, values: Any) -> None:
        self._variable.assign(values)


def _held(variables: Sequence[Any], prefix: str | None) -> list[Held]:
    return [Held(name, variable) for name, variable in zip(names_of(variables, prefix), variables, strict=True)]


def fragment_of(parameters: Any, *, buffers: bool) -> Fragment[Any]:
    """The trainable weights of a model or a layer, the moving means and the like of its layers that train, and the
    weights that are frozen.
    """
    model = parameters
    if not isinstance(model, keras.Layer):
        raise InvalidArgumentError(f"a {type(model).__name__} is not a model or a layer of Keras")
    frozen = {id(weight) for layer in model._flatten_layers() if not layer.trainable for weight in layer.weights}
    floats = [weight for weight in model.non_trainable_weights if keras.backend.is_float_dtype(weight.dtype)]
    moving = [weight for weight in floats if id(weight) not in frozen]
    fixed = [weight for weight in floats if id(weight) in frozen]
    return Fragment(
        _held(model.trainable_weights, None), _held(moving, "moving") if buffers else [], _held(fixed, "frozen")
    )


class _OutsideOfGraphs(local_steps.LocalSteps[Any]):
    def step(self) -> None:
        """This rank has made one more step of its own. Blocks where a round is due. Not for a tf.function, which would
        run it but once.
        """
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            if not tf.executing_eagerly():
                error: Any = NotAvailableError("rounds are made outside of a tf.function: call step() there")
                error.ag_pass_through = True  # AutoGraph would make it an error of its own
                raise error
        super().step()


class LocalSGD(_OutsideOfGraphs, local_steps.LocalSGD[Any]):
    """Local SGD of a model of Keras, which is built; `parameters` is the model. Call `step()` after each step."""

    tensors = TENSORS
    fragment_of = staticmethod(fragment_of)


class DiLoCo(_OutsideOfGraphs, local_steps.DiLoCo[Any]):
    """DiLoCo of a model of Keras, which is built; `fragments` is the model, or a list of layers. Call `step()` after
    each step.
    """

    tensors = TENSORS
    fragment_of = staticmethod(fragment_of)

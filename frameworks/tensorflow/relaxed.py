"""Local SGD and DiLoCo of variables of TensorFlow 2: the program calls `step()` after each step, outside of graphs.

with hvd.DiLoCo(model.trainable_variables, sync_every=100, compression="onebit") as diloco:
    for batch in data:
        train_step(batch)
        diloco.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casync.numpy.tensors import TENSORS

import tensorflow as tf
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.relaxed import local_steps
from casync.relaxed.fragment import Fragment

from .gradients import names_of

__all__ = ["DiLoCo", "LocalSGD"]


def _check_eager() -> None:
    if not tf.executing_eagerly():
        error: Any = NotAvailableError("rounds are made between the steps, outside of a tf.function: call step() there")
        error.ag_pass_through = True  # AutoGraph would make it an error of its own
        raise error


class _Held:
    """A variable. What is read is a copy in the host's memory."""

    def __init__(self, name: str, variable: Any) -> None:
        self.name, self._variable = name, variable

    def read(self) -> Any:
        _check_eager()
        return tf.convert_to_tensor(self._variable).numpy().copy()

    def write(self, values: Any) -> None:
        self._variable.assign(tf.cast(values, self._variable.dtype))


def _parts_of(fragments: Any) -> list[Any]:
    return list(fragments) if fragments and all(isinstance(one, list | tuple) for one in fragments) else [fragments]


def _fragment_of(parameters: Any, *, buffers: bool) -> Fragment[Any]:
    """Floats are averaged under the codec where they are trainable, and as buffers where they are not."""
    given = list(parameters) if isinstance(parameters, Sequence) else []
    if not given or not all(hasattr(one, "assign") for one in given):
        raise InvalidArgumentError("give a list of variables (model.variables), or a list of such lists for fragments")
    named = [
        (name, one) for name, one in zip(names_of(given), given, strict=True) if tf.as_dtype(one.dtype).is_floating
    ]
    trained = [_Held(name, one) for name, one in named if one.trainable]
    return Fragment(trained, [_Held(name, one) for name, one in named if not one.trainable] if buffers else [])


class _OutsideOfGraphs(local_steps.LocalSteps[Any]):
    def step(self) -> None:
        """This rank has made one more step of its own. Blocks where a round is due. Not for a tf.function, which would
        run it but once.
        """
        _check_eager()
        super().step()


class LocalSGD(_OutsideOfGraphs, local_steps.LocalSGD[Any]):
    """Local SGD of variables. `parameters` is a list of them: trainable ones, and ones that are averaged as they are,
    such as moving means.
    """

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)


class DiLoCo(_OutsideOfGraphs, local_steps.DiLoCo[Any]):
    """DiLoCo of variables. `fragments` is a list of them, as `LocalSGD` takes it; or a list of such lists."""

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)
    parts_of = staticmethod(_parts_of)

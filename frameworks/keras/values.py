"""Operations on values outside of training: numbers, arrays, variables. They block, in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import keras
from casync import numpy as hvd
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.waiting import synchronize_each
from casync.errors import NotAvailableError
from casync.tensors.signature import Average

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_global_variables", "broadcast_variables", "reducescatter"]


def _array(value: Any) -> Any:
    return np.ascontiguousarray(keras.ops.convert_to_numpy(value)).reshape(np.shape(value))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: CompressionLike = Compression.none,
) -> Any:
    """The value, a tensor or what makes an array, reduced over all ranks: a NumPy array. Arguments are those of
    `casync.torch.allreduce`.
    """
    return hvd.allreduce(_array(value), average, name, compression, op, prescale_factor, postscale_factor)


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks along the first dimension, as a NumPy array."""
    return hvd.allgather(_array(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of the rank `root_rank`, as a NumPy array."""
    return hvd.broadcast(_array(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's rows of the value reduced over all ranks, as a NumPy array."""
    return hvd.reducescatter(_array(value), name, op=op)


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """Give these variables of Keras, the same on all ranks and in one order, the values of the rank `root_rank`."""
    values = synchronize_each(
        hvd.broadcast_async(_array(variable), root_rank, f"{variable.path}.{index}")
        for index, variable in enumerate(variables)
    )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def broadcast_global_variables(root_rank: int) -> None:
    """There are none since Keras 3: raises, and names what to call."""
    raise NotAvailableError(
        "Keras 3 has no global variables: use callbacks.BroadcastGlobalVariablesCallback(root_rank), or "
        f"broadcast_variables(model.variables, {root_rank})"
    )

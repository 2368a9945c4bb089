"""The adaptor that tells CaSync about TensorFlow's eager tensors. Those of graphs have no memory yet: see `graph`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

import tensorflow as tf
from casync.config.rules import Shape
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.adaptor import Tensors, no_such_dtype, register
from casync.tensors.signature import DTYPES

__all__ = ["TENSORS", "TensorflowTensors", "scaled", "shape_of"]


class TensorflowTensors(Tensors[Any]):
    """Tensors whose values are there. They never change: what is made here is written once, before anybody sees it."""

    kind = tf.Tensor

    def admit(self, value: Any) -> Any:
        if not isinstance(value, tf.Tensor | tf.Variable):
            raise InvalidArgumentError(f"a {type(value).__name__} is not a tensor: give tf.convert_to_tensor() of it")
        if not tf.executing_eagerly():
            raise NotAvailableError(
                "a tensor of a graph has no values yet: take the operation without a handle, hvd.allreduce and the like"
            )
        with tf.device("CPU:0"):  # an operation there brings what is on a GPU to the host
            return tf.identity(value) if "CPU" not in value.device else tf.convert_to_tensor(value)

    def dtype(self, tensor: Any) -> str:
        name: str = tensor.dtype.name
        if name not in DTYPES:
            raise no_such_dtype(name)
        return name

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def address(self, tensor: Any) -> int:
        return _memory_of(tensor).ctypes.data

    def nbytes(self, tensor: Any) -> int:
        return _memory_of(tensor).nbytes

    def contiguous(self, tensor: Any) -> Any:
        return tensor

    def copy(self, tensor: Any) -> Any:
        made = self.empty(tensor.shape, tensor)
        ctypes.memmove(self.address(made), self.address(tensor), self.nbytes(tensor))
        return made

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        with tf.device("CPU:0"):
            return tf.raw_ops.Empty(shape=tf.constant(list(shape), tf.int32), dtype=like.dtype)

    def from_bytes(self, data: bytearray, shape: Sequence[int], like: Any) -> Any:
        made = self.empty(shape, like)
        ctypes.memmove(self.address(made), (ctypes.c_char * len(data)).from_buffer(data), len(data))
        return made

    def from_ints(self, numbers: Sequence[int], like: Any) -> Any:
        return tf.constant(list(numbers), tf.int32)

    def assign(self, target: Any, values: Any) -> None:
        self.check_in_place(target)

    def scaled(self, tensor: Any, factor: float) -> Any:
        return self.copy(tensor) if factor == 1.0 else scaled(tensor, factor)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor

    def check_in_place(self, tensor: Any) -> None:
        raise InvalidArgumentError("a tensor of TensorFlow never changes, so nothing can be reduced into it")


def shape_of(tensor: Any) -> Shape:
    """The shape of a tensor, a variable or `tf.IndexedSlices`; None where a graph leaves it open."""
    return tuple(tensor.shape) if tensor.shape.is_fully_defined() else None


def scaled(tensor: Any, factor: float) -> Any:
    """`factor * tensor` in its dtype, eager or in a graph; see `casync.tensors.Tensors.scaled`."""
    exact = tf.float64 if not tensor.dtype.is_floating or tensor.dtype == tf.float64 else tf.float32
    return tf.cast(tf.cast(tensor, exact) * tf.constant(factor, exact), tensor.dtype)


def _memory_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor's own memory as an array, which does not keep the tensor. NumPy makes a copy of a number."""
    return np.asarray(tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor)


TENSORS = TensorflowTensors()
register(TENSORS)

"""The adaptor that tells CaSync about JAX's arrays. NumPy computes on them, in the same memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from casync.numpy.tensors import TENSORS as NUMPY

import jax
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.adaptor import Tensors, no_such_dtype, register
from casync.tensors.signature import DTYPES
from jax.core import Tracer

__all__ = ["TENSORS", "JaxTensors"]

Values: TypeAlias = "np.ndarray[Any, Any]"

_ALIGNMENT = 64  # of memory that XLA takes as it is; it copies any other


class JaxTensors(Tensors[jax.Array]):
    """Arrays on one CPU device. What is made from one is on the same, committed to it or not, and of the same dtype,
    also where `jax_enable_x64` is off.
    """

    kind = jax.Array

    def admit(self, value: Any) -> jax.Array:
        if isinstance(value, Tracer):
            raise NotAvailableError(
                f"a {type(value).__name__} has no values yet: operations of casync.jax are eager, so let the function "
                "that jax.jit, jax.grad or jax.vmap traces return the array, and call the operation on what it returns"
            )
        if not isinstance(value, jax.Array):
            raise InvalidArgumentError(f"a {type(value).__name__} is not a JAX array: give jax.numpy.asarray() of it")
        if value.is_deleted():
            raise InvalidArgumentError("the array was deleted, or donated to a function: its memory is gone")
        devices = value.devices()
        if len(devices) > 1:
            raise NotAvailableError(
                f"an array over {len(devices)} devices, {value.sharding}: casync.jax takes arrays on one; give each "
                "array of its addressable_shards"
            )
        (device,) = devices
        if device.platform != "cpu":
            raise NotAvailableError(
                f"an array on {device}: casync.jax synchronises memory of the host; give "
                'jax.device_put(array, jax.devices("cpu")[0])'
            )
        return value

    def dtype(self, tensor: jax.Array) -> str:
        name: str = tensor.dtype.name
        if name not in DTYPES:
            raise no_such_dtype(name)
        return name

    def shape(self, tensor: jax.Array) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def address(self, tensor: jax.Array) -> int:
        pointer: int = tensor.unsafe_buffer_pointer()
        return pointer

    def nbytes(self, tensor: jax.Array) -> int:
        size: int = tensor.nbytes
        return size

    def contiguous(self, tensor: jax.Array) -> jax.Array:
        """Waits until they are computed. Another array at the same address if they are one after the other, and never
        the tensor itself: as long as there are two, a function that the tensor is donated to works on a copy.
        """
        return _array(np.asarray(tensor), tensor)

    def copy(self, tensor: jax.Array) -> jax.Array:
        values = _memory(tensor.shape, tensor.dtype)
        values[...] = tensor
        return _array(values, tensor)

    def empty(self, shape: Sequence[int], like: jax.Array) -> jax.Array:
        return _array(_memory(shape, like.dtype), like)

    def from_bytes(self, data: bytearray, shape: Sequence[int], like: jax.Array) -> jax.Array:
        return _array(NUMPY.from_bytes(data, shape, np.asarray(like)), like)

    def from_ints(self, numbers: Sequence[int], like: Any) -> jax.Array:
        values = np.array(numbers, np.int32)
        return _array(values, like) if isinstance(like, jax.Array) else jax.device_put(values)

    def assign(self, target: jax.Array, values: jax.Array) -> None:
        self.check_in_place(target)

    def scaled(self, tensor: jax.Array, factor: float) -> jax.Array:
        return _array(NUMPY.scaled(np.asarray(tensor), factor), tensor)

    def cast(self, tensor: jax.Array, dtype: str) -> jax.Array:
        values = np.asarray(tensor)
        cast = NUMPY.cast(values, dtype)
        return tensor if cast is values else _array(cast, tensor)

    def check_in_place(self, tensor: jax.Array) -> None:
        raise InvalidArgumentError("JAX's arrays never change: take the result of what does not work in place")


def _memory(shape: Sequence[int], dtype: np.dtype[Any]) -> Values:
    """Memory of its own that XLA takes as it is."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _array(values: Values, like: jax.Array) -> jax.Array:
    """An array of these values where `like` is, or its first part, and filled. It is at their address, and keeps them,
    if they are aligned and contiguous.
    """
    device = min(like.devices(), key=lambda one: one.id)
    with jax.default_device(device), jax.enable_x64(True):
        return jax.device_put(values, device if like.committed else None).block_until_ready()


TENSORS = JaxTensors()
register(TENSORS)

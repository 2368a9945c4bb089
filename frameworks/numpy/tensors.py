"""The adaptor that tells CaSync about NumPy arrays, and about tensors that DLPack turns into arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from casync._constants import FLOATING_DTYPES
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.adaptor import Tensors, no_such_dtype, register
from casync.tensors.signature import DTYPES

__all__ = ["TENSORS", "NumpyTensors"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_CPU = 1  # DLPack's number of the device whose memory is the host's


class NumpyTensors(Tensors[Array]):
    """Arrays of the machine's own byte order. Of dtype bfloat16 are those that the package `ml_dtypes` makes."""

    kind = np.ndarray

    def admit(self, value: Any) -> Array:
        if isinstance(value, np.ndarray):
            if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
                raise NotAvailableError(
                    "a MaskedArray: what lies under its mask would be sent too; give filled(0) of it, or its values"
                )
            return value
        if not hasattr(value, "__dlpack__"):
            raise InvalidArgumentError(f"a {type(value).__name__} is not an array: give numpy.asarray() of it")
        device, number = value.__dlpack_device__()
        if device != _CPU:
            raise NotAvailableError(
                f"a {type(value).__name__} on device {_name_of(device)}:{number}: casync.numpy synchronises memory of "
                "the host; copy it there"
            )
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise NotAvailableError(f"a {type(value).__name__} that NumPy makes no array of: {error}") from error

    def dtype(self, tensor: Array) -> str:
        if tensor.dtype.name not in DTYPES or not tensor.dtype.isnative:
            raise no_such_dtype(tensor.dtype.str if tensor.dtype.name in DTYPES else tensor.dtype)
        name: str = tensor.dtype.name
        return name

    def shape(self, tensor: Array) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def address(self, tensor: Array) -> int:
        return tensor.ctypes.data

    def nbytes(self, tensor: Array) -> int:
        return tensor.nbytes

    def contiguous(self, tensor: Array) -> Array:
        return tensor if tensor.flags.c_contiguous else tensor.copy(order="C")

    def copy(self, tensor: Array) -> Array:
        return np.array(tensor, order="C")

    def empty(self, shape: Sequence[int], like: Array) -> Array:
        return np.empty(shape, like.dtype)

    def from_bytes(self, data: bytearray, shape: Sequence[int], like: Array) -> Array:
        return np.frombuffer(data, like.dtype).reshape(shape) if data else np.empty(shape, like.dtype)

    def from_ints(self, numbers: Sequence[int], like: Any) -> Array:
        return np.array(numbers, np.int32)

    def assign(self, target: Array, values: Array) -> None:
        target[...] = values

    def scaled(self, tensor: Array, factor: float) -> Array:
        if factor == 1.0:
            return self.copy(tensor)
        floating = self.dtype(tensor) in FLOATING_DTYPES
        exact = np.promote_types(tensor.dtype, np.float32) if floating else np.dtype(np.float64)
        return np.asarray(tensor.astype(exact) * exact.type(factor)).astype(tensor.dtype, order="C")

    def accumulate(self, target: Array, factor: float, values: Array) -> None:
        exact = np.promote_types(np.promote_types(target.dtype, values.dtype), np.float32)
        target += (values.astype(exact, copy=False) * exact.type(factor)).astype(target.dtype, copy=False)

    def cast(self, tensor: Array, dtype: str) -> Array:
        if self.dtype(tensor) in (dtype, *(DTYPES.keys() - FLOATING_DTYPES)):
            return tensor
        try:
            return tensor.astype(dtype)
        except TypeError:
            raise NotAvailableError(f"NumPy has {dtype} once the package ml_dtypes is imported") from None

    def check_in_place(self, tensor: Array) -> None:
        if not tensor.flags.writeable:
            raise InvalidArgumentError("the array is read-only, so nothing can be reduced into it: give a copy")


def _name_of(device: int) -> str:
    names = {2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda_managed"}
    return names.get(device, str(device))


TENSORS = NumpyTensors()
register(TENSORS)

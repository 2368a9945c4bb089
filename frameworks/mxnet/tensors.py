"""The adaptor that tells CaSync about MXNet's arrays.

MXNet computes later: an array may have no values yet, and its memory none of its own. There are two views of that.
`LAZY` never waits: its arrays are for the engine, which waits for them. `TENSORS` waits, for operations that take an
address at once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from casync._constants import FLOATING_DTYPES
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.adaptor import Tensors, no_such_dtype, register
from casync.tensors.signature import DTYPES

from .loading import mx

__all__ = ["LAZY", "TENSORS", "LazyTensors", "MXTensors"]

if TYPE_CHECKING:
    NDArray: TypeAlias = Any  # MXNet has no annotations
else:
    NDArray = mx.nd.NDArray
_ON_HOST = ("cpu", "cpu_pinned", "cpu_shared")


class LazyTensors(Tensors[NDArray]):
    """Dense arrays, of `mx.nd` and of `mx.np`, whose values the engine has yet to compute. They have no address."""

    kind = NDArray

    def admit(self, value: Any) -> NDArray:
        if not isinstance(value, mx.nd.NDArray):
            raise InvalidArgumentError(f"a {type(value).__name__} is not an NDArray: give mx.nd.array() of it")
        if value.stype != "default":
            raise NotAvailableError(
                f"an array of storage {value.stype}: only dense ones; call .tostype('default') on it"
            )
        if value.context.device_type not in _ON_HOST:
            raise NotAvailableError(f"an array on {value.context}: casync.mxnet synchronises memory of the host")
        return value

    def dtype(self, tensor: NDArray) -> str:
        name: str = np.dtype(tensor.dtype).name
        if name not in DTYPES:
            raise no_such_dtype(name)
        return name

    def shape(self, tensor: NDArray) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def address(self, tensor: NDArray) -> int:
        raise NotAvailableError("an array that MXNet's engine has yet to compute has no address")

    def nbytes(self, tensor: NDArray) -> int:
        size: int = math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
        return size

    def contiguous(self, tensor: NDArray) -> NDArray:
        return tensor  # as all of them are

    def copy(self, tensor: NDArray) -> NDArray:
        with mx.autograd.pause():
            return tensor.copy()

    def empty(self, shape: Sequence[int], like: NDArray) -> NDArray:
        with mx.util.np_shape(True):  # without it an extent of 0 is one that is not known
            made = mx.nd.empty(tuple(shape), like.context, like.dtype)
        return _like(made, like)

    def from_bytes(self, data: bytearray, shape: Sequence[int], like: NDArray) -> NDArray:
        values = np.frombuffer(data, like.dtype).reshape(shape) if data else np.empty(shape, like.dtype)
        return _like(_from_numpy(values, like.context), like)

    def from_ints(self, numbers: Sequence[int], like: Any) -> NDArray:
        made = _from_numpy(np.array(numbers, np.int32), mx.cpu())
        return _like(made, like) if isinstance(like, mx.nd.NDArray) else made

    def assign(self, target: NDArray, values: NDArray) -> None:
        with mx.autograd.pause():
            if len(target.shape) < 3 or target.dtype != np.float32:
                values.copyto(target)
            else:  # which oneDNN may keep in blocks, and MXNet does not always copy to
                mx.nd._internal._mul_scalar(values, scalar=1.0, out=target)

    def scaled(self, tensor: NDArray, factor: float) -> NDArray:
        if factor == 1.0:
            return self.copy(tensor)
        dtype = self.dtype(tensor)
        exact = "float64" if dtype not in FLOATING_DTYPES else "float32" if dtype == "float16" else dtype
        with mx.autograd.pause():
            return (tensor.astype(exact, copy=False) * factor).astype(dtype, copy=False)

    def cast(self, tensor: NDArray, dtype: str) -> NDArray:
        if dtype == "bfloat16":
            raise NotAvailableError("MXNet's arrays on the host are not cast to bfloat16: use float16")
        if self.dtype(tensor) not in FLOATING_DTYPES:
            return tensor
        return tensor.astype(dtype, copy=False)


class MXTensors(LazyTensors):
    """The same adaptor, which waits: what a method is given has its values, and so has what it returns."""

    def admit(self, value: Any) -> NDArray:
        return _waited(super().admit(value))

    def on_host(self, tensor: NDArray) -> NDArray:
        return _waited(tensor)

    def address(self, tensor: NDArray) -> int:
        found = ctypes.c_void_p()
        mx.base.check_call(mx.base._LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(found)))
        return found.value or 0

    def copy(self, tensor: NDArray) -> NDArray:
        return _waited(super().copy(tensor))

    def assign(self, target: NDArray, values: NDArray) -> None:
        super().assign(target, values)
        target.wait_to_read()

    def scaled(self, tensor: NDArray, factor: float) -> NDArray:
        return _waited(super().scaled(tensor, factor))

    def cast(self, tensor: NDArray, dtype: str) -> NDArray:
        return _waited(super().cast(tensor, dtype))

    def check_in_place(self, tensor: NDArray) -> None:
        """Waits for what still reads the old values, which are about to go."""
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(tensor.handle))


def _waited(tensor: NDArray) -> NDArray:
    tensor.wait_to_read()
    return tensor


def _from_numpy(values: np.ndarray[Any, Any], context: Any) -> NDArray:
    with mx.util.np_shape(True):
        return mx.nd.array(values, context, values.dtype)


def _like(made: NDArray, like: NDArray) -> NDArray:
    """Return `made`, as an array of `mx.np` if `like` is one."""
    return made.as_np_ndarray() if isinstance(like, mx.np.ndarray) else made


LAZY = LazyTensors()
TENSORS = MXTensors()
register(TENSORS)

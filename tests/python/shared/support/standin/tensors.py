"""Arrays on the stand-in, and what CaSync must know of them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from casync.numpy.tensors import TENSORS as NUMPY

from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.adaptor import Tensors, register
from casync.tensors.device import Device
from support.arrays import Array
from support.standin import driver

DELAY_MS = 1
"""How long a kernel takes at least: who does not wait for it sees what was there before."""


class _Memory:
    """Of one or several arrays, and the stream that it belongs to."""

    def __init__(self, bytes: int) -> None:
        self.address = driver.allocate(bytes)
        self.streams: list[int | None] = [driver.current.stream]
        self._finalizer = weakref.finalize(self, driver.free, self.address, driver.current.stream)
        self._finalizer.atexit = False


class StandinArray:
    """An array on a device. `kernel_side` is what kernels see of it, for nobody else."""

    def __init__(self, memory: _Memory, kernel_side: Array) -> None:
        self.memory = memory
        self.kernel_side = kernel_side

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kernel_side.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.kernel_side.dtype

    @property
    def T(self) -> StandinArray:
        return StandinArray(self.memory, self.kernel_side.T)

    def __len__(self) -> int:
        return len(self.kernel_side)

    def __getitem__(self, key: Any) -> StandinArray:
        keys = key if isinstance(key, tuple) else (key,)
        return StandinArray(self.memory, self.kernel_side[keys if Ellipsis in keys else (*keys, ...)])  # not a number

    def __setitem__(self, key: Any, value: float) -> None:
        fill(self[key], value)

    def __eq__(self, other: object) -> bool:
        return bool(np.all(to_host(self) == other))

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        return from_host, (to_host(self),)

    def tolist(self) -> Any:
        return to_host(self).tolist()


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> StandinArray:
    count = int(np.prod(shape, dtype=np.int64))
    memory = _Memory(count * dtype.itemsize)
    bytes_of = (ctypes.c_char * max(1, count * dtype.itemsize)).from_address(
        memory.address + driver.loaded().standin_distance()
    )
    return StandinArray(memory, np.frombuffer(memoryview(bytes_of), dtype, count).reshape(shape))


def from_host(array: Array) -> StandinArray:
    """An array with these values, once the current stream has come to it."""
    values = np.array(array, order="C")
    made = empty(values.shape, values.dtype)
    fill(made, values)
    return made


def fill(target: StandinArray, values: Any) -> None:
    """A kernel that gives `target` the values of an array of the host."""

    def kernel() -> None:
        target.kernel_side[...] = values

    driver.launch(kernel, DELAY_MS)


def to_host(tensor: StandinArray) -> Array:
    """Its values, for which this waits."""
    driver.synchronize()
    return np.array(tensor.kernel_side)


class StandinDevice(Device):
    def __init__(self, tensors: tuple[StandinArray, ...]) -> None:
        self._tensors = tensors

    @property
    def number(self) -> int:
        return driver.current.device

    def stream(self) -> int:
        return driver.current.stream or 0

    def ordered(self) -> None:
        for tensor in self._tensors:
            tensor.memory.streams.append(driver.current.stream)


class StandinTensors(Tensors[StandinArray]):
    kind = StandinArray

    def admit(self, value: Any) -> StandinArray:
        if not isinstance(value, StandinArray):
            raise InvalidArgumentError(f"a {type(value).__name__} is not an array of the stand-in")
        return value

    def dtype(self, tensor: StandinArray) -> str:
        return NUMPY.dtype(tensor.kernel_side)

    def shape(self, tensor: StandinArray) -> tuple[int, ...]:
        return tensor.shape

    def device(self, *tensors: StandinArray) -> Device:
        return StandinDevice(tensors)

    def on_host(self, tensor: StandinArray) -> StandinArray:
        raise NotAvailableError("no replicas of the stand-in are watched")

    def address(self, tensor: StandinArray) -> int:
        return tensor.kernel_side.ctypes.data - int(driver.loaded().standin_distance())

    def nbytes(self, tensor: StandinArray) -> int:
        return tensor.kernel_side.nbytes

    def contiguous(self, tensor: StandinArray) -> StandinArray:
        return tensor if tensor.kernel_side.flags.c_contiguous else self.copy(tensor)

    def copy(self, tensor: StandinArray) -> StandinArray:
        return self._computed(tensor, lambda values: values)

    def empty(self, shape: Sequence[int], like: StandinArray) -> StandinArray:
        return empty(shape, like.dtype)

    def from_bytes(self, data: bytearray, shape: Sequence[int], like: StandinArray) -> StandinArray:
        return from_host(np.frombuffer(data, like.dtype).reshape(shape) if data else np.empty(shape, like.dtype))

    def from_ints(self, numbers: Sequence[int], like: Any) -> StandinArray:
        return from_host(np.array(numbers, np.int32))

    def assign(self, target: StandinArray, values: StandinArray) -> None:
        def kernel() -> None:
            target.kernel_side[...] = values.kernel_side

        driver.launch(kernel, DELAY_MS)

    def scaled(self, tensor: StandinArray, factor: float) -> StandinArray:
        return self._computed(tensor, lambda values: NUMPY.scaled(values, factor))

    def cast(self, tensor: StandinArray, dtype: str) -> StandinArray:
        raise NotAvailableError("arrays of the stand-in are not cast")

    def _computed(self, tensor: StandinArray, function: Any) -> StandinArray:
        result = empty(tensor.shape, tensor.dtype)

        def kernel() -> None:
            result.kernel_side[...] = function(tensor.kernel_side)

        driver.launch(kernel, DELAY_MS)
        return result


TENSORS = StandinTensors()
register(TENSORS)

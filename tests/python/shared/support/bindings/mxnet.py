"""casync.mxnet in the suite. What blocks elsewhere is the engine's here, so it is waited for: errors come then."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import casync.mxnet
import ml_dtypes
import numpy as np
import pytest
from casync.mxnet.loading import mx
from casync.mxnet.tensors import TENSORS

from casync.errors import CasyncError
from support import bindings
from support.arrays import Array

mx.util.set_np_shape(True)  # arrays without elements or dimensions, of which the suite has many


_BLOCKING = """allgather allreduce allreduce_ alltoall broadcast broadcast_ grouped_allgather grouped_allreduce
grouped_allreduce_ grouped_reducescatter reducescatter""".split()


class Binding(bindings.Binding):
    name = "mxnet"
    blocks = False

    def __init__(self) -> None:
        super().__init__()
        # An NDArray has no weak references, and what it is made from has: by the address of its memory.
        self._behind: dict[int, weakref.ref[Array]] = {}

    def adaptor(self) -> Any:
        names = {name: getattr(casync.mxnet, name) for name in casync.mxnet.__all__}
        return SimpleNamespace(**names | {name: _blocking(name) for name in _BLOCKING})

    def tensor(self, array: Array) -> Any:
        if array.dtype in (np.int16, np.uint16, ml_dtypes.bfloat16):
            pytest.skip(f"MXNet has no {array.dtype}")
        if array.size == 0 or array.dtype in (bool, np.int8):  # of which MXNet takes no memory of NumPy
            return mx.nd.array(array, dtype=array.dtype)
        own = np.array(array, order="C")
        made = mx.nd.from_numpy(own)
        self._behind[TENSORS.address(made)] = weakref.ref(own)
        return made

    def array(self, tensor: Any) -> Array:
        values: Array = tensor.asnumpy()
        return values

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, mx.nd.NDArray)

    def memory(self, tensor: Any) -> Callable[[], bool]:
        there = self._behind[TENSORS.address(tensor)]
        return lambda: there() is not None

    def gapped(self, array: Array) -> tuple[Any, Any]:
        return self.tensor(array), self.tensor(array)  # an array that is a part of another is a copy, or whole rows


def _blocking(name: str) -> Callable[..., Any]:
    """The operation, waited for. Its frame is none of the user's, so that messages name the test that called it."""
    operation = getattr(casync.mxnet, name)

    def wait(result: Any) -> Any:
        failures = []
        for each in result if isinstance(result, list | tuple) else (result,):
            try:
                each.wait_to_read()
            except CasyncError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return result

    made: dict[str, Any] = {"__name__": "casync.mxnet.waited", "operation": operation, "wait": wait}
    if name.endswith("reducescatter"):  # Horovod has another order of arguments for MXNet
        made |= {"none": casync.mxnet.Compression.none, "average": casync.mxnet.Average}
        exec(
            "def call(tensor, name=None, compression=none, op=average, *rest, **others):\n"
            "    given = dict(zip(('process_set', 'prescale_factor', 'postscale_factor'), rest))\n"
            "    return wait(operation(tensor, op, name, compression=compression, **given, **others))",
            made,
        )
    else:
        exec("def call(*given, **named): return wait(operation(*given, **named))", made)
    call: Callable[..., Any] = made["call"]
    return call

"""casync.jax in the suite."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from support import bindings
from support.arrays import Array


class Binding(bindings.Binding):
    name = "jax"
    in_place = False

    def tensor(self, array: Array) -> Any:
        memory = np.empty(array.nbytes + 64, np.uint8)
        start = -memory.ctypes.data % 64  # where XLA takes memory as it is
        own = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        own[...] = array
        with jax.enable_x64(True):
            made = jax.device_put(own)
        made.owner = weakref.ref(memory)
        return made

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, jax.Array)

    def memory(self, tensor: Any) -> Callable[[], bool]:
        there = tensor.owner
        return lambda: there() is not None

"""casync.numpy in the suite."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from support import bindings
from support.arrays import Array


class Binding(bindings.Binding):
    name = "numpy"

    def tensor(self, array: Array) -> Any:
        return np.array(array, order="C")

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def memory(self, tensor: Any) -> Callable[[], bool]:
        owner = tensor
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        there = weakref.ref(owner)
        return lambda: there() is not None

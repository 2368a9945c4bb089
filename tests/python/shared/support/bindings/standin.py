"""The stand-in for a GPU in the suite: no framework, but all that an adaptor for one with GPUs goes by."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from casync.collectives import exports
from casync.collectives.interface import Collectives
from support import bindings
from support.arrays import Array
from support.standin import driver, kernels, tensors


class Binding(bindings.Binding):
    name = "standin"
    cycles = 20  # a rank that leaves before its peer's copy is over is waited for, for a second

    def adaptor(self) -> Any:
        driver.loaded()
        kernels.take_the_place_of_nvrtc()
        operations = Collectives(tensors.TENSORS)
        return SimpleNamespace(
            **{name: getattr(exports, name) for name in exports.__all__},
            **{name: getattr(operations, name) for name in dir(operations) if not name.startswith("_")},
        )

    def tensor(self, array: Array) -> Any:
        return tensors.from_host(array)

    def array(self, tensor: Any) -> Array:
        return tensors.to_host(tensor)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, tensors.StandinArray)

    def memory(self, tensor: Any) -> Callable[[], bool]:
        there = weakref.ref(tensor.memory)
        return lambda: there() is not None

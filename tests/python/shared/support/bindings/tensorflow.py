"""casync.tensorflow in the suite: eager tensors, which never change."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from support import bindings
from support.arrays import Array

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Binding(bindings.Binding):
    name = "tensorflow"
    in_place = False

    def __init__(self) -> None:
        super().__init__()
        import tensorflow

        self.tf = tensorflow

    def tensor(self, array: Array) -> Any:
        return self.tf.constant(np.array(array, order="C"))

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor.numpy())

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.tf.Tensor)

    def memory(self, tensor: Any) -> Callable[[], bool]:
        there = weakref.ref(tensor)
        return lambda: there() is not None

    def gapped(self, array: Array) -> tuple[Any, Any]:
        whole = np.repeat(array, 2, axis=-1)
        return self.tensor(whole[..., ::2]), self.tensor(whole[..., 1::2])

    def turned(self, array: Array) -> Any:
        return self.tensor(array)

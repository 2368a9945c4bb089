"""casync.torch in the suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from support import bindings
from support.arrays import Array


class Binding(bindings.Binding):
    name = "torch"

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)

    def tensor(self, array: Array) -> Any:
        own = np.array(array, order="C")
        if own.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(own)

    def array(self, tensor: Any) -> Array:
        short = tensor.dtype == torch.bfloat16  # which torch gives NumPy no array of
        values: Array = (tensor.view(torch.int16) if short else tensor).numpy()
        return values.view(ml_dtypes.bfloat16) if short else values

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def memory(self, tensor: Any) -> Callable[[], bool]:
        there = StorageWeakRef(tensor.untyped_storage())
        return lambda: not there.expired()

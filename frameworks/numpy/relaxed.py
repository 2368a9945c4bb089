"""Local SGD and DiLoCo for NumPy arrays: the program calls `step()` after each step of its own.

with hvd.DiLoCo({"w": w, "b": b}, sync_every=100, compression="onebit") as diloco:
    for batch in data:
        w -= ...
        diloco.step()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from casync.errors import InvalidArgumentError
from casync.relaxed import local_steps
from casync.relaxed.fragment import Fragment

from .tensors import TENSORS

__all__ = ["DiLoCo", "LocalSGD"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Parameters: TypeAlias = Mapping[str, Array]


class _Held:
    """An array of the program's."""

    def __init__(self, name: str, values: Array) -> None:
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fV":  # bfloat16 of ml_dtypes is V
            what = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
            raise InvalidArgumentError(f"parameter {name} is a {what}: it must be an array of floats")
        TENSORS.check_in_place(values)
        self.name, self._values = name, values

    def read(self) -> Array:
        return self._values

    def write(self, values: Array) -> None:
        self._values[...] = values


def _fragment_of(parameters: Parameters, *, buffers: bool) -> Fragment[Array]:
    del buffers  # arrays have none
    if not isinstance(parameters, Mapping):
        raise InvalidArgumentError(f"a {type(parameters).__name__} is not a dict of arrays by name")
    return Fragment([_Held(name, values) for name, values in parameters.items()])


class LocalSGD(local_steps.LocalSGD[Parameters]):
    """Local SGD for arrays. `parameters` is a dict of arrays by name, which the program changes in place."""

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)


class DiLoCo(local_steps.DiLoCo[Parameters]):
    """DiLoCo for arrays. `fragments` is a dict of arrays by name, which the program changes in place; or a list of such
    dicts.
    """

    tensors = TENSORS
    fragment_of = staticmethod(_fragment_of)

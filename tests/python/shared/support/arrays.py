"""NumPy arrays that tests make tensors of, and that they compare results with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16")
DTYPES = (*FLOATS, *INTEGERS, "bool")


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy itself has no bfloat16."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def full(shape: int | Sequence[int], value: float, dtype: str = "float32") -> Array:
    """An array of one value."""
    return np.full(shape, value).astype(dtype_of(dtype))


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: str, size: int) -> list[Array]:
    """One array for each rank, with values whose sums and products fit the dtype."""
    low = 0 if dtype.startswith("u") else -2
    values = rng.uniform(-2, 2, (size, *shape)) if dtype in FLOATS else rng.integers(low, 3, (size, *shape))
    return [np.asarray(value).astype(dtype_of(dtype)) for value in values]


def normal(rng: np.random.Generator, shape: int | Sequence[int], dtype: str, size: int) -> list[Array]:
    """One array for each rank, of the standard normal distribution."""
    return [np.asarray(rng.standard_normal(shape)).astype(dtype_of(dtype)) for _ in range(size)]

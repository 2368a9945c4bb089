"""Gradients in the element types of the frameworks. numpy has no bfloat16: its elements are uint16 here."""

from __future__ import annotations

import numpy as np

from casync._constants import FLOATING_DTYPES as DTYPES

__all__ = ["DTYPES", "FLOAT32", "STORAGE", "bits", "distance", "to_elements", "to_values"]

FLOAT32 = DTYPES.index("float32")
_BFLOAT16 = DTYPES.index("bfloat16")
STORAGE = (np.float32, np.float16, np.uint16, np.float64)


def to_elements(values: np.ndarray, dtype: int) -> np.ndarray:
    """float32 values as elements of `dtype`, rounded to nearest even."""
    if dtype != _BFLOAT16:
        with np.errstate(over="ignore"):
            return values.astype(STORAGE[dtype])
    whole = values.astype(np.float32).view(np.uint32)
    rounded = (whole + 0x7FFF + (whole >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def to_values(elements: np.ndarray, dtype: int) -> np.ndarray:
    """Elements as float32; as float64 if they are that."""
    if dtype == _BFLOAT16:
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements if dtype == 3 else elements.astype(np.float32)


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bits of an array, for comparisons in which -0 is not 0 and a NaN is itself."""
    return array.view(f"u{array.itemsize}")


def distance(a: np.ndarray, b: np.ndarray | float = 0.0) -> float:
    """The Euclidean one. numpy's own norm takes threads from a busy machine."""
    return float(np.sqrt(np.square(a - b).sum()))

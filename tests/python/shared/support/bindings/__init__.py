"""What the suite in tests/python/adaptor must know of a framework: a module of its name here, with a `Binding`.

The suite speaks of NumPy arrays. A binding turns them into tensors and back; what an operation is called and what it
takes is alike in all adaptors. A binding is imported when the first test asks for it, so that a job that tests one
framework does not load another.
"""

from __future__ import annotations

import importlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from casync.session import default
from support.arrays import Array, dtype_of, full

FRAMEWORKS = ("jax", "mxnet", "numpy", "standin", "tensorflow", "tensorflow_graph", "torch")
"""In the order in which they are tested. `standin` is a GPU without one (support/standin)."""
ON_DEVICE = "cuda"
"""torch on a GPU, tested only where CASYNC_TEST_FRAMEWORK names it: a process has one driver, the stand-in or a real
one.
"""


class Binding(ABC):
    """One framework, and the adaptor to it."""

    name: str
    in_place = True
    """Whether a tensor's values can change, and so whether there are `allreduce_` and the like."""
    in_graph = False
    """Whether operations run in graphs: then errors say where the binding made them, and no thread waits in CaSync."""
    blocks = True
    """Whether what blocks waits in CaSync, and not in the framework."""
    cycles = 100
    """How often a test opens and closes a world to see whether something stays behind."""

    def __init__(self) -> None:
        self.hvd = self.adaptor()

    def adaptor(self) -> Any:
        """The module that a program imports."""
        return importlib.import_module(f"casync.{self.name}")

    @abstractmethod
    def tensor(self, array: Array) -> Any:
        """A tensor with the values, the shape and the dtype of `array`, in memory of its own."""

    @abstractmethod
    def array(self, tensor: Any) -> Array:
        """The values of a tensor, with its shape and dtype."""

    @abstractmethod
    def is_tensor(self, value: Any) -> bool:
        """Whether that is what results of this adaptor must be."""

    @abstractmethod
    def memory(self, tensor: Any) -> Callable[[], bool]:
        """What says whether the memory of the values is still there, and does not keep it there."""

    def gapped(self, array: Array) -> tuple[Any, Any]:
        """A tensor as `tensor` makes it, but for other values between its own; and those, which are the same."""
        whole = self.tensor(np.repeat(array, 2, axis=-1))
        return whole[..., ::2], whole[..., 1::2]

    def turned(self, array: Array) -> Any:
        """A tensor as `tensor` makes it, whose first index is the fastest in memory."""
        return self.tensor(array.T).T

    # What tests say more often than anything else.

    def full(self, shape: int | Sequence[int], value: float, dtype: str = "float32") -> Any:
        return self.tensor(full(shape, value, dtype))

    def ones(self, shape: int | Sequence[int], dtype: str = "float32") -> Any:
        return self.full(shape, 1, dtype)

    def assert_equal(self, tensor: Any, expected: Array) -> None:
        """It is a tensor of this framework, with exactly these values and this dtype and shape."""
        assert self.is_tensor(tensor), f"a {type(tensor).__name__} is no result of casync.{self.name}"
        values = self.array(tensor)
        assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(values, expected)

    def assert_counts(self, counts: Any, expected: Array) -> None:
        """They are the received splits of an alltoall whose splits were a list."""
        self.assert_equal(counts, expected)

    def assert_filled(self, tensor: Any, shape: int | Sequence[int], value: float, dtype: str = "float32") -> None:
        self.assert_equal(tensor, full(shape, value, dtype))

    def assert_close(
        self, tensor: Any, expected: Any, dtype: str = "float32", *, rtol: float, atol: float = 0.0
    ) -> None:
        """It is a tensor of this dtype and of the shape of `expected`, whose values, in float64, it has but for
        rounding.
        """
        assert self.is_tensor(tensor), f"a {type(tensor).__name__} is no result of casync.{self.name}"
        wanted, values = np.asarray(expected).astype(np.float64), self.array(tensor)
        assert (values.dtype, values.shape) == (dtype_of(dtype), wanted.shape)
        np.testing.assert_allclose(values.astype(np.float64), wanted, rtol=rtol, atol=atol)

    def assert_same_bits_everywhere(self, tensor: Any, process_set: Any = default.GLOBAL_PROCESS_SET) -> None:
        """All ranks of the set have the same bits. Collective over them."""
        for other in self.hvd.allgather_object(self.array(tensor).tobytes(), process_set=process_set):
            assert other == self.array(tensor).tobytes()


def tested() -> list[str]:
    """Those that CASYNC_TEST_FRAMEWORK names, with commas between them; else those whose adaptor is installed, wherever
    they are themselves. Imports none.
    """
    if named := os.environ.get("CASYNC_TEST_FRAMEWORK"):
        return named.split(",")
    return [name for name in FRAMEWORKS if name == "standin" or find_spec(f"casync.{_package(name)}") is not None]


def is_there(name: str) -> bool:
    """Whether the framework itself is; of the stand-in, what compiles it."""
    if name == "standin":
        return shutil.which("g++") is not None
    return find_spec("torch" if name == ON_DEVICE else _package(name)) is not None


def _package(name: str) -> str:
    """TensorFlow has two ways to run."""
    return name.removesuffix("_graph")


def binding_of(name: str) -> Binding:
    """The binding for a framework, which is imported for it."""
    made = importlib.import_module(f"support.bindings.{name}").Binding()
    assert isinstance(made, Binding)
    return made

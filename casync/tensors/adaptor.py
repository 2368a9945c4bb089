"""The interface by which an adaptor describes its framework's tensors. All else about collectives is written once.

    class TorchTensors(Tensors[torch.Tensor]): ...

No framework is imported here. No method communicates or waits; any thread may call any of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.device import Device
from casync.tensors.signature import DTYPES

__all__ = ["T", "Tensors", "about", "adaptor_of", "register", "squared_norm_of"]

T = TypeVar("T")


class Tensors(ABC, Generic[T]):
    """The dense tensors of one framework. A method that makes one makes it contiguous, and where its tensors are."""

    kind: type[T]
    """The class of the tensors. What has a class derived from it is a tensor too, but may do something of its own."""

    @abstractmethod
    def admit(self, value: Any) -> T:
        """The tensor that a user means by `value`. Raises `InvalidArgumentError` for what is none, and
        `NotAvailableError` for one that is not dense, or on a device that there is no way to.
        """

    @abstractmethod
    def dtype(self, tensor: T) -> str:
        """The core's name of its dtype, one of `signature.DTYPES`. Raises `NotAvailableError` for any other."""

    @abstractmethod
    def shape(self, tensor: T) -> tuple[int, ...]:
        """The tensor's extents."""

    def device(self, *tensors: T) -> Device | None:
        """Where the tensors of one operation are; None for this host's memory. They are kept as long as that is."""
        del tensors
        return None

    def on_host(self, tensor: T) -> T:
        """The tensor's values in this host's memory: the tensor itself if that is where it is. Waits for them."""
        return tensor

    @abstractmethod
    def address(self, tensor: T) -> int:
        """The address of the first element, on the device if the tensor is on one."""

    @abstractmethod
    def nbytes(self, tensor: T) -> int:
        """How many bytes the tensor's elements have."""

    def checksums(self, tensors: Sequence[T]) -> list[int]:
        """A number of at most 64 bits for each, which is another one if a bit of its values is. On all ranks the same
        for the same values, wherever the tensors are. Waits for them.
        """
        from casync import _core

        found = []
        for tensor in tensors:
            values = self.contiguous(self.on_host(tensor))
            found.append(_core.crc32c(self.address(values), self.nbytes(values)))
        return found

    @abstractmethod
    def contiguous(self, tensor: T) -> T:
        """The tensor's values, one after the other: the tensor itself if they are, else a copy."""

    @abstractmethod
    def copy(self, tensor: T) -> T:
        """A copy of the tensor's values."""

    @abstractmethod
    def empty(self, shape: Sequence[int], like: T) -> T:
        """A tensor with this shape and the dtype of `like`, of any values."""

    @abstractmethod
    def from_bytes(self, data: bytearray, shape: Sequence[int], like: T) -> T:
        """`data`, which the tensor may keep, as values of the dtype of `like`, and where that is."""

    @abstractmethod
    def from_ints(self, numbers: Sequence[int], like: Any) -> T:
        """A vector of int32; where `like` is, if that is a tensor."""

    @abstractmethod
    def assign(self, target: T, values: T) -> None:
        """Give `target` these values, of its shape, in place."""

    @abstractmethod
    def scaled(self, tensor: T, factor: float) -> T:
        """`factor * tensor` as a new tensor of its dtype. Integers are multiplied in float64 and truncated towards
        zero, 16-bit floats at least in float32.
        """

    def accumulate(self, target: T, factor: float, values: T) -> None:
        """`target += factor * values`, in place, of floats; in the wider of their dtypes."""
        self.assign(target, target + values * factor)  # type: ignore[arg-type, operator]

    def beside(self, tensor: T, other: T) -> T:
        """The tensor's values where `other` is: the tensor itself if that is where it is."""
        del other
        return tensor

    def every(self, tensor: T, first: int, stride: int) -> list[float]:
        """Return the elements `first`, `first + stride` and so on, in the order of the memory. Waits for them."""
        import numpy as np

        values = np.asarray(self.on_host(tensor)).reshape(-1)[first::stride]
        return [float(one) for one in values]

    def squared_norm(self, tensor: T) -> float:
        """Return the sum of the squares of the elements; NaN or infinite only if one of them is. Waits for it."""
        import numpy as np

        return squared_norm_of(np.asarray(self.on_host(tensor)))

    @abstractmethod
    def cast(self, tensor: T, dtype: str) -> T:
        """The tensor's values in another floating dtype; the tensor itself if it has that one, or is not of floats."""

    def check_in_place(self, tensor: T) -> None:
        """Raise `InvalidArgumentError` if the tensor's values cannot be changed."""
        del tensor


def squared_norm_of(values: Any) -> float:
    """Return the sum of the squares of a NumPy array; NaN or infinite only if one of its elements is."""
    import numpy as np

    if values.dtype.itemsize < 4:
        values = values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.vdot(values, values))
        return square if math.isfinite(square) else float(np.square(values, dtype=np.float64).sum())


def no_such_dtype(dtype: object) -> NotAvailableError:
    """Make the error that `Tensors.dtype` raises for a dtype that CaSync does not have."""
    return NotAvailableError(f"dtype {dtype}: there are {', '.join(DTYPES)}")


class about:
    """A context in which a refusal names the tensor that it is about. None: the tensor has no name.

    with about(name):
        tensor = tensors.admit(value)
    """

    __slots__ = ("_name",)

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name = self._name
        if name is None or not isinstance(error, InvalidArgumentError | NotAvailableError) or error.tensor is not None:
            return
        if not isinstance(name, str):
            return
        error.tensor = name
        if name not in str(error):
            error.args = (f"tensor {name}: {error}", *error.args[1:])


_adaptors: dict[type, Tensors[Any]] = {}


def register(tensors: Tensors[Any]) -> None:
    """Have `adaptor_of` find `tensors` for tensors of their kind: each adaptor does so when it is imported."""
    _adaptors[tensors.kind] = tensors


def adaptor_of(tensor: object) -> Tensors[Any]:
    """Return the adaptor that describes this tensor. Raises `NotAvailableError` if there is none."""
    for kind in type(tensor).__mro__:
        if kind in _adaptors:
            return _adaptors[kind]
    raise NotAvailableError(f"a {type(tensor).__name__} is a tensor of no adaptor that was imported")

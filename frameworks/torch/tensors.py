"""The adaptor that tells CaSync about torch's tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.adaptor import Tensors, no_such_dtype, register
from casync.tensors.device import Device
from casync.tensors.signature import DTYPES

from . import device
from .checksums import checksums

__all__ = ["TENSORS", "TorchTensors", "refuse_transformed"]

_NAMES = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}  # uint16 since torch 2.3


def refuse_transformed(tensor: torch.Tensor) -> None:
    """Raise `NotAvailableError` for a tensor that torch.func stands for: it has no memory that could be sent."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise NotAvailableError(
            "a tensor within a transform of torch.func (vmap, grad, jvp): it has no memory that ranks could exchange. "
            "Call CaSync with the transform's result"
        )


class TorchTensors(Tensors[torch.Tensor]):
    """Dense tensors. What is made from one that requires a gradient does not."""

    kind = torch.Tensor

    def admit(self, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(f"a {type(value).__name__} is not a tensor")
        device.check(value)
        if value.layout is not torch.strided:
            raise NotAvailableError(
                f"a tensor of layout {value.layout}: only dense ones are there yet; call .to_dense() on it"
            )
        return value

    def dtype(self, tensor: torch.Tensor) -> str:
        name = _NAMES.get(tensor.dtype)
        if name is None:
            raise no_such_dtype(tensor.dtype)
        return name

    def has_dtype(self, tensor: torch.Tensor) -> bool:
        """Whether `dtype` has a name for it."""
        return tensor.dtype in _NAMES

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tensor.shape

    def device(self, *tensors: torch.Tensor) -> Device | None:
        return device.device_of(tensors)

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    def address(self, tensor: torch.Tensor) -> int:
        try:
            return tensor.data_ptr()
        except RuntimeError:
            refuse_transformed(tensor)
            raise

    def nbytes(self, tensor: torch.Tensor) -> int:
        return tensor.nbytes

    def checksums(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        return checksums(tensors)

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous():
            return tensor if not tensor.is_neg() else tensor.detach().resolve_neg()
        return tensor.detach().contiguous()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(tuple(shape))

    def from_bytes(self, data: bytearray, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        if not data:
            return self.empty(shape, like)
        return torch.frombuffer(data, dtype=like.dtype).reshape(tuple(shape)).to(like.device)

    def from_ints(self, numbers: Sequence[int], like: Any) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=like.device if isinstance(like, torch.Tensor) else None)

    @torch.no_grad()
    def assign(self, target: torch.Tensor, values: torch.Tensor) -> None:
        shared = [d for d in range(target.dim()) if target.stride(d) == 0 and target.shape[d] > 1]
        if not shared:
            target.copy_(values)
            return
        once, first = target, values  # of an expanded tensor, where elements along `shared` are one
        for dim in shared:
            once, first = once.narrow(dim, 0, 1), first.narrow(dim, 0, 1)
        once.copy_(first)
        if _bytes_of(target).ne(_bytes_of(values)).any():
            raise InvalidArgumentError(
                f"a tensor of shape {tuple(target.shape)} that was expanded cannot take values that differ along "
                f"dimension {shared[0]}, as those of another rank do: give it memory of its own, by .clone()"
            )

    def scaled(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        tensor = tensor.detach()
        if factor == 1.0:
            return self.copy(tensor)
        if tensor.is_floating_point():
            return tensor.contiguous() * float(factor)
        return (tensor.contiguous().to(torch.float64) * float(factor)).to(tensor.dtype)

    @torch.no_grad()
    def accumulate(self, target: torch.Tensor, factor: float, values: torch.Tensor) -> None:
        target.add_(values, alpha=factor)

    def beside(self, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return tensor.to(other.device)

    def every(self, tensor: torch.Tensor, first: int, stride: int) -> list[float]:
        found: list[float] = tensor.detach().reshape(-1)[first::stride].double().tolist()
        return found

    def squared_norm(self, tensor: torch.Tensor) -> float:
        values = tensor.detach()
        if not values.dtype.is_floating_point:
            return float(values.double().square().sum())
        norm = float(torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32)))
        return norm**2 if math.isfinite(norm) else float(values.double().square().sum())

    def cast(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        return tensor.to(getattr(torch, dtype)) if tensor.dtype.is_floating_point else tensor


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


TENSORS = TorchTensors()
register(TENSORS)

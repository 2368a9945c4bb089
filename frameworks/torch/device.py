"""Tensors on a GPU, as torch has them. No other file here names `torch.cuda`."""

from __future__ import annotations

from typing import Any

import torch
from casync.errors import NotAvailableError
from casync.tensors.device import Device

__all__ = ["CudaDevice", "await_all", "await_stream", "check", "device_of", "places"]


class CudaDevice(Device):
    """Where the tensors of one operation are."""

    __slots__ = ("_number", "_tensors")

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._number = tensors[0].get_device()
        self._tensors = tensors

    @property
    def number(self) -> int:
        return self._number

    def stream(self) -> int:
        stream: int = torch.cuda.current_stream(self._number).cuda_stream
        return stream

    def ordered(self) -> None:
        stream = torch.cuda.current_stream(self._number)
        for tensor in self._tensors:
            tensor.record_stream(stream)


def check(tensor: torch.Tensor) -> None:
    """Raise `NotAvailableError` for a tensor that is neither on the CPU nor on a GPU of NVIDIA's."""
    if tensor.is_cpu or (tensor.is_cuda and torch.version.hip is None):
        return
    kind = "ROCm" if tensor.is_cuda else tensor.device.type
    raise NotAvailableError(
        f"a tensor on {tensor.device} ({kind}): tensors on the CPU and on NVIDIA's GPUs are synchronised; call .cpu() "
        "on it"
    )


def places() -> list[str]:
    """Kinds of devices that this process has."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def device_of(tensors: tuple[torch.Tensor, ...]) -> CudaDevice | None:
    """Where tensors are; None for the CPU."""
    return None if tensors[0].is_cpu else CudaDevice(tensors)


def await_stream(tensor: torch.Tensor) -> None:
    """Wait until the device of `tensor` has done what its current stream has been given by now."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def await_all(tensors: Any) -> None:
    """`await_stream` for each of them, which may be in lists."""
    if isinstance(tensors, torch.Tensor):
        await_stream(tensors)
        return
    for one in tensors:
        await_all(one)

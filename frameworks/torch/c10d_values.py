"""Converts the values that a process group's calls hand over to what the core takes, and back: see `c10d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.tensors.signature import Average, Max, Min, Product, Sum

from . import device
from .tensors import TENSORS

__all__ = [
    "NOT_THERE", "assign_all", "bytes_of", "deal_out", "plain", "reducible", "reduction_by", "reduction_of",
]  # fmt: skip

_REDUCTIONS: tuple[tuple[Any, int], ...] = (
    (dist.ReduceOp.SUM, Sum),
    (dist.ReduceOp.AVG, Average),
    (dist.ReduceOp.MIN, Min),
    (dist.ReduceOp.MAX, Max),
    (dist.ReduceOp.PRODUCT, Product),
)
_OTHERS = ("BAND", "BOR", "BXOR", "PREMUL_SUM")
NOT_THERE = 'Give such calls to another backend, by a group of its own: dist.new_group(backend="gloo")'
"""The advice in errors on what to do instead."""


def reduction_by(op: Any) -> int:
    for theirs, ours in _REDUCTIONS:
        if op == theirs:
            return ours
    name = next((name for name in _OTHERS if op == getattr(dist.ReduceOp, name, None)), str(op))
    raise NotAvailableError(f"{name}: casync reduces by SUM, AVG, MIN, MAX and PRODUCT. {NOT_THERE}")


def reduction_of(tensor: torch.Tensor, reduction: int) -> int:
    """Return the reduction to use for `tensor`. For truth values, "or" is the largest and "and" the smallest."""
    if tensor.dtype != torch.bool:
        return reduction
    return Min if reduction in (Min, Product) else Max


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; of complex numbers, the pairs of floats."""
    device.check(tensor)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def reducible(tensor: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what the core reduces in place, and, if that is not the tensor's own memory, what to copy back."""
    device.check(tensor)
    values = tensor.detach()
    if values.is_complex():
        if reduction not in (Sum, Average):
            raise NotAvailableError(f"complex numbers are reduced by SUM and AVG. {NOT_THERE}")
        values = torch.view_as_real(values)
    if values.dtype == torch.bool:
        values = values.view(torch.uint8)
    TENSORS.dtype(TENSORS.admit(values))  # raises for those that there is no sum of
    if values.is_contiguous():
        return values, None
    copy = values.contiguous()
    back = torch.view_as_complex(copy) if tensor.is_complex() else copy.view(tensor.dtype)
    return copy, back


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory, or that of a copy if it is not contiguous."""
    device.check(tensor)
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


@torch.no_grad()
def assign_all(copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for target, values in copies:
        target.copy_(values)


@torch.no_grad()
def deal_out(call: str, data: bytearray, rows: Sequence[int], outputs: Sequence[torch.Tensor]) -> None:
    """Raises `InvalidArgumentError` if a rank has sent what does not fit; before anything is written."""
    for rank, (count, output) in enumerate(zip(rows, outputs, strict=False)):
        if count != output.numel() * output.element_size():
            raise InvalidArgumentError(
                f"{call}: rank {rank} of the group has sent {count} bytes, and the tensor for them, {output.dtype} of "
                f"shape {tuple(output.shape)}, has {output.numel() * output.element_size()}: make what that rank gives "
                "and what this rank gives for it of one size"
            )
    begin = 0
    for count, output in zip(rows, outputs, strict=False):
        if count:
            values = torch.frombuffer(data, dtype=torch.uint8, count=count, offset=begin)
            output.detach().copy_(values.view(output.dtype).view(output.shape))
        begin += count

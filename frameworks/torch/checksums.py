"""Checksums of tensors, computed where they are: a model on a GPU is not copied to the host for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["checksums"]

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COLUMNS = 1021  # a prime: values that change places within a matrix of the usual widths change columns
_ROWS = 8192  # at once: narrow integers are widened on the way, which takes memory


@torch.no_grad()
def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """One for each, of 64 bits. It depends on the bits of the values and their places, and not on the device. Devices
    are waited for once, at the end.
    """
    if not tensors:
        return []
    sums = [_checksum(tensor.detach()).to(tensors[0].device, non_blocking=True) for tensor in tensors]
    found: list[int] = torch.stack(sums).tolist()
    return found


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Sums of integers, which wrap around and so do not depend on their order: of each column, and then of all columns,
    each times another odd number.
    """
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = flat.contiguous().view(-1)
    bits = flat.view(_BITS[flat.element_size()])
    dtype = torch.int64 if bits.dtype is torch.int64 else torch.int32
    columns = torch.zeros(_COLUMNS, dtype=dtype, device=tensor.device)
    whole = bits.numel() // _COLUMNS * _COLUMNS
    for begin in range(0, whole, _COLUMNS * _ROWS):
        block = bits[begin : min(begin + _COLUMNS * _ROWS, whole)]
        columns += block.view(-1, _COLUMNS).sum(0, dtype=dtype)
    columns[: bits.numel() - whole] += bits[whole:]
    return (columns * torch.arange(1, 2 * _COLUMNS, 2, device=tensor.device)).sum()

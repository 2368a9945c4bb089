"""Sums of sparse tensors, as DDP makes them of an embedding's gradients: every rank has the rows of all. See `c10d`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from casync.errors import NotAvailableError
from casync.tensors.signature import Average, Sum

from .c10d_values import NOT_THERE, bytes_of

__all__ = ["add_up", "packed"]


def packed(call: str, tensor: torch.Tensor, reduction: int) -> torch.Tensor:
    """The bytes of its indices, and behind them those of its values."""
    if tensor.layout is not torch.sparse_coo or reduction not in (Sum, Average):
        raise NotAvailableError(f"{call}: of sparse tensors there are SUM and AVG in the COO layout. {NOT_THERE}")
    rows = tensor.detach().coalesce()
    return torch.cat([bytes_of(rows.indices()), bytes_of(rows.values())])


@torch.no_grad()
def add_up(reduction: int, data: bytearray, counts: Sequence[int], outputs: Sequence[torch.Tensor]) -> None:
    """`data` has what each rank has packed, `counts` how many bytes that is. There is one output."""
    (tensor,) = outputs
    dims, dense = tensor.sparse_dim(), tuple(tensor.shape[tensor.sparse_dim() :])
    width = 8 * dims + tensor.element_size() * torch.Size(dense).numel()
    indices, values = [], []
    whole = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    for part in whole.split(list(counts)):
        rows = part.numel() // width
        indices.append(part[: 8 * dims * rows].clone().view(torch.int64).view(dims, rows))
        values.append(part[8 * dims * rows :].clone().view(tensor.dtype).view(rows, *dense))
    total = torch.cat(values)
    if reduction == Average:
        total /= len(counts)
    found = torch.sparse_coo_tensor(torch.cat(indices, 1), total, tensor.shape, check_invariants=False).coalesce()
    tensor.copy_(found.to(tensor.device))

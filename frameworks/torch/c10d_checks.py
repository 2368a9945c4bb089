"""Checks of what a call of a process group is given, before anything is sent: see `c10d`.

A result that does not fit its tensor would be written beyond it, or be read as another dtype. What another rank sends
is seen on arrival (`c10d_values`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from casync.errors import InvalidArgumentError

__all__ = ["check_count", "check_dtypes", "check_gathered", "check_parts", "check_scattered", "parts_of"]


def _told(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of {tensor.numel()} elements"


def check_count(call: str, what: str, tensors: Sequence[torch.Tensor], size: int) -> None:
    """A tensor for each rank."""
    if len(tensors) != size:
        raise InvalidArgumentError(
            f"{call}: {len(tensors)} {what} tensors in a group of {size} ranks: give one for each rank"
        )


def check_dtypes(call: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """One dtype for all."""
    tensors = [*inputs, *outputs]
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise InvalidArgumentError(
                f"{call}: a tensor is {tensor.dtype} and another is {tensors[0].dtype}: results keep the dtype of what "
                "is given, so make all tensors of one dtype"
            )


def check_scattered(call: str, output: torch.Tensor, given: torch.Tensor, size: int) -> None:
    """`given` has a part for each rank, and one of them fits `output`."""
    check_dtypes(call, [output], [given])
    if given.numel() != output.numel() * size:
        raise InvalidArgumentError(
            f"{call}: the input is {_told(given)}, the output {_told(output)}: in a group of {size} ranks the input "
            f"must have {size} times as many elements as the output"
        )


def check_gathered(call: str, output: torch.Tensor, given: torch.Tensor, size: int) -> None:
    """`output` has room for one like `given` of each rank."""
    check_dtypes(call, [output], [given])
    if output.numel() != given.numel() * size:
        raise InvalidArgumentError(
            f"{call}: the input is {_told(given)}, the output {_told(output)}: in a group of {size} ranks the output "
            f"must have {size} times as many elements as the input"
        )


def check_parts(call: str, output: torch.Tensor, parts: Sequence[torch.Tensor], rank: int, size: int) -> None:
    """`parts` has one for each rank; this rank's fits `output`."""
    check_count(call, "input", parts, size)
    check_dtypes(call, [output], parts)
    if output.numel() != parts[rank].numel():
        raise InvalidArgumentError(
            f"{call}: part {rank} of the input is {_told(parts[rank])}, the output of rank {rank} {_told(output)}: "
            "they must have as many elements"
        )


def parts_of(call: str, what: str, tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[torch.Tensor]:
    """Rows of `tensor` for each rank: as many as `splits` says, or as many for each."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits and rows % size:
        raise InvalidArgumentError(
            f"{call}: the {what} has {rows} rows, which {size} ranks cannot share alike: give {what}_split_sizes"
        )
    counts = list(splits) or [rows // size] * size
    if len(counts) != size or sum(counts) != rows or min(counts) < 0:
        raise InvalidArgumentError(
            f"{call}: {what}_split_sizes={counts} do not share the {rows} rows of the {what} among {size} ranks"
        )
    return list(torch.split(tensor, counts)) if tensor.dim() else []

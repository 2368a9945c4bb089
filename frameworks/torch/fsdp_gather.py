"""FSDP2's gathers of parameters, in 8 bits: the blocks of ZeRO++'s qwZ (Wang et al., ICLR 2024, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from casync.errors import NotAvailableError
from torch.nn import functional as F

from .fsdp_units import AllGather, ShardedParameter, Unit

__all__ = ["BLOCK", "QuantizedAllGather", "exact_because"]

BLOCK = 256
"""Values that share a scale. They are counted from the start of a rank's part of a parameter."""
_LEVELS = 127


def exact_because(parameter: ShardedParameter) -> str:
    """Return why a parameter is gathered as it is; empty if it is not."""
    return "it has one dimension" if parameter.parameter.ndim < 2 else ""


class _Part(NamedTuple):
    """A parameter in what a rank gathers."""

    numel: int
    is_exact: bool

    @property
    def blocks(self) -> int:
        return 0 if self.is_exact else -(-self.numel // BLOCK)


class QuantizedAllGather(AllGather):
    """The object that FSDP calls to gather the parameters of one unit: `allocate`, then the gather.

    A rank sends of each block the codes, from -127 to 127, and the distance of two levels in float32. Each rank decodes
    what all have sent, its own part too. So all compute with the same weights.
    """

    def __init__(self, unit: Unit) -> None:
        self._name = unit.name
        self._parts = [_Part(one.padded_shape.numel(), bool(exact_because(one))) for one in unit.parameters]
        self._numel = sum(part.numel for part in self._parts)

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """A gather of other parts than the parameters' own is exact: one in the backward pass, where
        `reshard_after_forward` is a number of ranks.
        """
        if not input_tensor.is_floating_point():
            raise NotAvailableError(
                f"{self._name} gathers {input_tensor.dtype}: quantize_all_gather rounds real floats alone"
            )
        if input_tensor.numel() != self._numel:
            plain: dist.Work | None = dist.all_gather_single(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
            return plain
        payload = self._encoded(input_tensor)
        received = payload.new_empty(group.size() * payload.numel())
        dist.all_gather_single(received, payload, group=group)
        self._decode(received.view(group.size(), -1), output_tensor.view(group.size(), -1))
        return None

    def _encoded(self, values: torch.Tensor) -> torch.Tensor:
        """All codes, then all scales, then what is exact, as bytes."""
        parts = torch.split(values, [part.numel for part in self._parts])
        of_codes, of_scales, exact = [], [], []
        for part, own in zip(self._parts, parts, strict=True):
            if part.is_exact:
                exact.append(own.view(torch.uint8))
                continue
            blocks = F.pad(own.float(), (0, part.blocks * BLOCK - part.numel)).view(-1, BLOCK)
            scale = blocks.abs().amax(1) / _LEVELS
            inverse = torch.where(scale > 2.0**-100, 1 / scale, 0.0)
            codes = torch.round(blocks * inverse.unsqueeze(1)).nan_to_num(0).clamp(-_LEVELS, _LEVELS)
            of_codes.append(codes.to(torch.int8).view(-1).view(torch.uint8))
            of_scales.append(scale.view(torch.uint8))
        return torch.cat([*of_codes, *of_scales, *exact])

    def _decode(self, received: torch.Tensor, values: torch.Tensor) -> None:
        """From the bytes of all ranks to their values, a row for each."""
        code_at, scale_at = 0, BLOCK * sum(part.blocks for part in self._parts)
        exact_at = scale_at + 4 * sum(part.blocks for part in self._parts)
        for part, out in zip(self._parts, torch.split(values, [part.numel for part in self._parts], 1), strict=True):
            if part.is_exact:
                size = part.numel * values.element_size()
                out.copy_(received[:, exact_at : exact_at + size].contiguous().view(values.dtype))
                exact_at += size
                continue
            codes = received[:, code_at : code_at + part.blocks * BLOCK].view(torch.int8)
            scales = received[:, scale_at : scale_at + 4 * part.blocks].contiguous().view(torch.float32)
            blocks = codes.reshape(len(received), part.blocks, BLOCK) * scales.unsqueeze(2)
            limit = torch.finfo(values.dtype).max  # 127 levels may be a little more than the largest value
            blocks.clamp_(-limit, limit)
            out.copy_(blocks.view(len(received), -1)[:, : part.numel])
            code_at += part.blocks * BLOCK
            scale_at += 4 * part.blocks

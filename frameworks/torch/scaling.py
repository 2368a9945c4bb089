"""Prescale and postscale factors: multiplied in before the sum and after it, as precisely as the dtype allows."""

from __future__ import annotations

import torch

__all__ = ["UNSCALED", "scaled"]

UNSCALED = (1.0, 1.0)
"""No prescale and no postscale."""


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """`factor * tensor` as a new contiguous tensor of the same dtype. Integers are multiplied in float64 and truncated
    towards zero, 16-bit floats in float32.
    """
    tensor = tensor.detach()
    if factor == 1.0:
        return tensor.clone(memory_format=torch.contiguous_format)
    tensor = tensor.contiguous()
    if tensor.is_floating_point():
        return tensor * float(factor)
    return (tensor.to(torch.float64) * float(factor)).to(tensor.dtype)

"""PyTorch's own communication hooks of DDP, which the benchmarks have beside ours."""

from __future__ import annotations

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

__all__ = ["HOOKS", "register_hook"]

HOOKS = ("fp16_compress_hook", "powerSGD_hook")
"""Gradients in 16 bits, and PowerSGD of rank 4."""


def register_hook(wrapped: nn.parallel.DistributedDataParallel, name: str, first: int = 2) -> None:
    """Register one of `HOOKS`. PowerSGD begins with the step `first`, and gradients are sent as they are before it."""
    if name == "fp16_compress_hook":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powerSGD_hook":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=first)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        raise ValueError(f"no hook {name}; there are {', '.join(HOOKS)}")

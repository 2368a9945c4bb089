"""PyTorch's own communication hooks of DDP, which the benchmarks have beside ours."""

from __future__ import annotations

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

__all__ = ["HOOKS", "register_hook", "with_hook"]

HOOKS = ("fp16_compress_hook", "powerSGD_hook")
"""Gradients in 16 bits, and PowerSGD of rank 4."""


def with_hook(model: nn.Module, name: str, first: int = 2) -> nn.parallel.DistributedDataParallel:
    """The model in DDP, with one of `HOOKS`. For PowerSGD all gradients are in one bucket: over gloo its hook mixes up
    the operations of several, and hangs or aborts.
    """
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=4096 if name == "powerSGD_hook" else 25)
    register_hook(wrapped, name, first)
    return wrapped


def register_hook(wrapped: nn.parallel.DistributedDataParallel, name: str, first: int = 2) -> None:
    """Register one of `HOOKS`. PowerSGD begins with the step `first`, and gradients are sent as they are before it."""
    if name == "fp16_compress_hook":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powerSGD_hook":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=first)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        raise ValueError(f"no hook {name}; there are {', '.join(HOOKS)}")

"""Gradients of the blocking operations. Backward is collective: all ranks must run it, in one order."""

from __future__ import annotations

from typing import Any

import torch
from casync.adaptor import Average, Sum, session_of
from casync.errors import NotAvailableError

from . import ops

__all__ = ["Allgather", "Allreduce", "Broadcast"]


class Allreduce(torch.autograd.Function):
    """Every rank's output depends on every rank's input alike, so the gradient is reduced as the tensor was."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        compression: Any,
        op: int,
        scales: tuple[float, float],
        process_set: Any,
        topology: str | None,
    ) -> torch.Tensor:
        if op not in (Average, Sum):
            raise NotAvailableError("allreduce is differentiable for Sum and Average; call .detach() for the others")
        ctx.arguments = (op, *scales, process_set)
        ctx.topology = topology
        return ops.allreduce(tensor.detach(), None, name, compression, *ctx.arguments, topology=topology)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mine = ops.allreduce(gradient, None, None, None, *ctx.arguments, topology=ctx.topology)
        return mine, None, None, None, None, None, None


class Allgather(torch.autograd.Function):
    """This rank's rows are in every rank's output: their gradients are averaged (Horovod's convention, which fits a
    loss that is the mean over ranks), and its own rows cut out."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: Any) -> torch.Tensor:
        ctx.process_set = process_set
        rows = torch.tensor([tensor.shape[0]], dtype=torch.int64)
        ctx.rows = ops.allgather(rows, None if name is None else f"{name}.rows", process_set).tolist()
        return ops.allgather(tensor.detach(), name, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rank = session_of(ctx.process_set).rank
        begin = sum(ctx.rows[:rank])
        mean = ops.allreduce(gradient, op=Average, process_set=ctx.process_set)
        return mean[begin : begin + ctx.rows[rank]], None, None


class Broadcast(torch.autograd.Function):
    """The root's tensor is every rank's output: the root receives the mean of the gradients, the others zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: Any) -> torch.Tensor:
        ctx.process_set = process_set
        ctx.is_root = session_of(process_set).rank == process_set.root(root_rank)
        return ops.broadcast(tensor.detach(), root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mean = ops.allreduce(gradient, op=Average, process_set=ctx.process_set)
        return mean if ctx.is_root else mean.zero_(), None, None, None

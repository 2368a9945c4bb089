"""Gradients of the blocking operations. Backward is collective: all ranks must run it, in one order. It can be
differentiated in its turn (`create_graph=True`), which is collective too.

Classes have Horovod's names, under which they show in graphs; those for one tensor take its arguments in `apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives import allgather
from casync.collectives.interface import Collectives
from casync.collectives.reducescatter import gradient_factor
from casync.collectives.waiting import synchronize
from casync.errors import NotAvailableError
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average, Sum, resolve_op

from .tensors import TENSORS, refuse_transformed

__all__ = [
    "Autograd",
    "Function",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
]

Tensors = Sequence[torch.Tensor]
Scales = tuple[float, float]

_hvd = Collectives(TENSORS)
"""The operations on values alone."""


def _check(op: int) -> None:
    """Raise `NotAvailableError` for an allreduce whose gradient is not one."""
    if op not in (Average, Sum):
        raise NotAvailableError("allreduce is differentiable for Sum and Average; call .detach() for the others")


class Function(torch.autograd.Function):
    """torch's, whose `apply` has no annotations: it takes what `forward` does and returns what that returns."""

    apply: ClassVar[Callable[..., Any]]


class HorovodAllreduce(Function):
    """Every rank's output depends on every rank's input alike, so the gradient is reduced as the tensor was."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        compression: CompressionLike = Compression.none,
        topology: str | None = None,
    ) -> torch.Tensor:
        op = resolve_op(op, average)
        _check(op)
        ctx.arguments = (op, prescale_factor, postscale_factor, process_set)
        ctx.topology = topology
        return _hvd.allreduce(tensor.detach(), None, name, compression, *ctx.arguments, topology=topology)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mine = HorovodAllreduce.apply(gradient, None, None, *ctx.arguments, Compression.none, ctx.topology)
        return mine, None, None, None, None, None, None, None, None


def _mean(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """Over the ranks, differentiable."""
    mean: torch.Tensor = HorovodAllreduce.apply(tensor, None, None, Average, 1.0, 1.0, process_set)
    return mean


class HorovodAllgather(Function):
    """This rank's rows are in every rank's output: their gradients are averaged (Horovod's convention, which fits a
    loss that is the mean over ranks), and its own rows cut out."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        ctx.process_set = process_set
        output, ctx.rows = allgather.gathered(TENSORS, tensor.detach(), name, process_set)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rank = session_of(ctx.process_set).rank
        begin = sum(ctx.rows[:rank])
        mean = _mean(gradient, ctx.process_set)
        return mean[begin : begin + ctx.rows[rank]], None, None


class HorovodBroadcast(Function):
    """The root's tensor is every rank's output: the root receives the mean of the gradients, the others zeros."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.process_set = process_set
        ctx.is_root = session_of(process_set).rank == process_set.root(root_rank)
        return _hvd.broadcast(tensor.detach(), root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mean = _mean(gradient, ctx.process_set)
        return mean if ctx.is_root else mean.zero_(), None, None, None


class HorovodReducescatter(Function):
    """Every rank's rows of the input are in the owner's result, whose gradient therefore goes to all."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        compression: CompressionLike = Compression.none,
    ) -> torch.Tensor:
        scales = (prescale_factor, postscale_factor)
        ctx.factor = gradient_factor(op, scales, process_set)
        ctx.process_set = process_set
        return _hvd.reducescatter(tensor.detach(), name, compression, op, process_set, *scales)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Spread.apply(gradient * ctx.factor, ctx.process_set), None, None, None, None, None, None


class _Spread(Function):
    """The gradient of a sum whose rows are dealt out, to which this is the exact opposite."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
        ctx.process_set = process_set
        return _hvd.allgather(gradient.detach(), process_set=process_set)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return HorovodReducescatter.apply(gradient, None, Sum, ctx.process_set, 1.0, 1.0), None


class HorovodAlltoall(Function):
    """Each row has gone to one rank, and its gradient comes back from there; rows that went nowhere have none."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, counts = synchronize(_hvd.alltoall_async(tensor.detach(), splits, name, process_set))
        ctx.mark_non_differentiable(counts)
        ctx.counts = counts
        ctx.rows = tensor.shape[0]
        ctx.process_set = process_set
        return output, counts

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _counts: Any) -> tuple[torch.Tensor | None, ...]:
        mine, _ = HorovodAlltoall.apply(gradient, ctx.counts, None, ctx.process_set)
        if mine.shape[0] < ctx.rows:
            mine = torch.cat([mine, mine.new_zeros((ctx.rows - mine.shape[0], *mine.shape[1:]))])
        return mine, None, None, None


class _Grouped(Function):
    """A grouped operation; the gradients of its floating-point tensors are one grouped operation too."""

    @staticmethod
    def forward(ctx: Any, run: Any, run_back: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = run([tensor.detach() for tensor in tensors])
        ctx.floating = [tensor.is_floating_point() for tensor in tensors]
        ctx.mark_non_differentiable(*(result for result in results if not result.is_floating_point()))
        ctx.run_back = run_back
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given = [gradient for gradient, floating in zip(gradients, ctx.floating, strict=True) if floating]
        mine = iter(ctx.run_back(given))
        return None, None, *(next(mine) if floating else None for floating in ctx.floating)


class HorovodGroupedAllreduce(_Grouped):
    """Backward of `grouped_allreduce`: the gradients are reduced together."""


class HorovodGroupedAllgather(_Grouped):
    """Backward of `grouped_allgather`: the gradients are averaged together, and each rank takes its own rows."""


class HorovodGroupedReducescatter(_Grouped):
    """Backward of `grouped_reducescatter`: the gradients are gathered together."""


class Autograd:
    """See `casync.collectives.autograd`."""

    def wants(self, tensor: Any) -> bool:
        if not (isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()):
            return False
        refuse_transformed(tensor)
        return True

    def allreduce(
        self, tensor: torch.Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet,
        compression: CompressionLike, topology: str | None,
    ) -> Any:  # fmt: skip
        return HorovodAllreduce.apply(tensor, None, name, op, *scales, process_set, compression, topology)

    def allgather(self, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        return HorovodAllgather.apply(tensor, name, process_set)

    def broadcast(self, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        return HorovodBroadcast.apply(tensor, root_rank, name, process_set)

    def alltoall(self, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        return HorovodAlltoall.apply(tensor, splits, name, process_set)

    def reducescatter(
        self,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> Any:
        return HorovodReducescatter.apply(tensor, name, op, process_set, *scales, compression)

    def grouped_allreduce(
        self,
        tensors: Tensors,
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[torch.Tensor]:
        _check(op)

        def run(tensors: Tensors) -> list[torch.Tensor]:
            return _hvd.grouped_allreduce(tensors, None, name, compression, op, *scales, process_set)

        def run_back(gradients: Tensors) -> list[torch.Tensor]:
            return self.grouped_allreduce(gradients, None, op, scales, process_set, Compression.none)

        return list(HorovodGroupedAllreduce.apply(run, run_back, *tensors))

    def grouped_allgather(self, tensors: Tensors, name: str | None, process_set: ProcessSet) -> list[torch.Tensor]:
        kept = [tensor.shape[0] for tensor in tensors if tensor.is_floating_point()]
        begins: list[int] = []

        def run(tensors: Tensors) -> list[torch.Tensor]:
            rows = torch.tensor([kept], dtype=torch.int64)
            all_rows = _hvd.allgather(rows, None if name is None else f"{name}.rows", process_set)
            begins.extend(all_rows[: session_of(process_set).rank].sum(0).tolist())
            return _hvd.grouped_allgather(tensors, name, process_set)

        def run_back(gradients: Tensors) -> list[torch.Tensor]:
            means = self.grouped_allreduce(gradients, None, Average, (1.0, 1.0), process_set, Compression.none)
            return [mean[begin : begin + rows] for mean, begin, rows in zip(means, begins, kept, strict=True)]

        return list(HorovodGroupedAllgather.apply(run, run_back, *tensors))

    def grouped_reducescatter(
        self,
        tensors: Tensors,
        name: str | None,
        op: int,
        scales: Scales,
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[torch.Tensor]:
        def run(tensors: Tensors) -> list[torch.Tensor]:
            return _hvd.grouped_reducescatter(tensors, name, compression, op, process_set, *scales)

        def run_back(gradients: Tensors) -> list[torch.Tensor]:
            factor = gradient_factor(op, scales, process_set)
            return list(_Grouped.apply(spread, run_back_again, *(gradient * factor for gradient in gradients)))

        def spread(gradients: Tensors) -> list[torch.Tensor]:
            return _hvd.grouped_allgather(gradients, process_set=process_set)

        def run_back_again(gradients: Tensors) -> list[torch.Tensor]:
            return self.grouped_reducescatter(gradients, None, Sum, (1.0, 1.0), process_set, Compression.none)

        return list(HorovodGroupedReducescatter.apply(run, run_back, *tensors))

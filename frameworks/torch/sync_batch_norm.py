"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from casync.errors import InvalidArgumentError
from casync.session import default
from casync.tensors.signature import Sum

from . import ops
from .autograd import Function

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """`torch.nn.BatchNorm1d` to `3d` whose mean and variance in training are those of all ranks' inputs together.

    Inputs are (batch, num_features, ...); batches may differ in size between ranks, and be empty. A forward
    in training and its backward are collective: one small exchange each, of 2 * num_features values. In evaluation, and
    in a world of one, it is torch's batch normalisation. Parameters are torch's.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        # Under which the ranks meet: by the order of the modules' first use.
        self._name: str | None = None

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise InvalidArgumentError(
                f"SyncBatchNorm of {self.num_features} features: the input is {tuple(input.shape)} and must be "
                f"(batch, {self.num_features}, ...)"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalised input, of its shape and dtype."""
        self._check_input_dim(input)
        batch_statistics = self.training or self.running_mean is None or self.running_var is None
        if not batch_statistics or default.session().size == 1:
            own: torch.Tensor = super().forward(input)
            return own
        # float16 and bfloat16 have neither the range nor the digits for sums.
        values = input if input.dtype == torch.float64 else input.float()
        extents = [1, -1] + [1] * (input.dim() - 2)
        count = values.numel() // self.num_features
        if count > 0:
            variance, mean = torch.var_mean(values.transpose(0, 1).flatten(1), dim=1, correction=0)
        else:  # zeros, whose gradient goes the way of the others': all ranks must come to its exchange
            variance = mean = values.transpose(0, 1).flatten(1).sum(1)
        total, mean, variance = _OfAllRanks.apply(count, mean, variance, self._meeting())
        if self.training and self.track_running_stats:
            self._follow(total, mean.detach(), variance.detach())
        normal = (values - mean.view(extents)) * torch.rsqrt(variance + self.eps).view(extents)
        if self.affine:
            normal = normal * self.weight.view(extents) + self.bias.view(extents)
        result: torch.Tensor = normal.to(input.dtype)
        return result

    def _meeting(self) -> str:
        if self._name is None:
            self._name = f"sync_batch_norm.{default.session().call_numbers.next('sync_batch_norm')}"
        return self._name

    def _follow(self, total: int, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics as torch does: the variance there is the unbiased one."""
        assert self.num_batches_tracked is not None and self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        unbiased = variance * (total / max(total - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class _OfAllRanks(Function):
    """Mean and variance of several batches from those of each (Chan, Golub, LeVeque 1979), in rank order."""

    @staticmethod
    def forward(
        ctx: Any, count: int, mean: torch.Tensor, variance: torch.Tensor, name: str
    ) -> tuple[int, torch.Tensor, torch.Tensor]:
        mine = torch.cat([mean.new_tensor([count]), mean, variance])
        rows = ops.allgather(mine.unsqueeze(0), name=name)
        counts, means, variances = rows.split([1, mean.numel(), mean.numel()], dim=1)
        total = int(counts.sum())
        shares = counts / max(total, 1)
        overall = (shares * means).sum(0)
        spread = (shares * (variances + (means - overall).square())).sum(0)
        ctx.save_for_backward(mean, overall)  # an input and an output, which a second derivative passes through
        ctx.share = count / max(total, 1)
        ctx.name = name
        return total, overall, spread

    @staticmethod
    def backward(
        ctx: Any, _total: Any, of_mean: torch.Tensor, of_variance: torch.Tensor
    ) -> tuple[None, torch.Tensor, torch.Tensor, None]:
        mean, overall = ctx.saved_tensors
        both = ops.allreduce(torch.stack([of_mean, of_variance]), name=f"{ctx.name}.gradient", op=Sum)
        return None, ctx.share * (both[0] + 2 * both[1] * (mean - overall)), ctx.share * both[1], None

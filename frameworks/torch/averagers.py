"""Averaging of parameters every so many steps, under the name that torch has for it.

    averager = hvd.PeriodicModelAverager(period=4, warmup_steps=100)
    averager.average_parameters(model.parameters())  # after each step

`casync.torch.LocalSGD` does the same with codecs, weights, buffers and checkpoints.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from casync.errors import InvalidArgumentError
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average, OpKind, OpSignature

from .relaxed_parts import Held
from .tensors import TENSORS

__all__ = ["PeriodicModelAverager"]


class PeriodicModelAverager:
    """`torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager`, but for one thing: parameters
    that have no gradient on this rank are averaged too, since they may have one on another.
    """

    def __init__(
        self,
        period: int,
        warmup_steps: int = 0,
        process_group: dist.ProcessGroup | None = None,
        *,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Collective over the ranks that average.

        Args:
            period: steps between two means.
            warmup_steps: steps before the first mean.
            process_group: the ranks that average, as a group of torch; or give `process_set`. None: all.
            process_set: the ranks that average.
        """
        if warmup_steps < 0:
            raise InvalidArgumentError(f"warmup_steps={warmup_steps}: it must be a number from 0 on")
        if period < 1:
            raise InvalidArgumentError(f"period={period}: it must be a number from 1 on")
        if process_group is not None and process_set is not global_process_set:
            raise InvalidArgumentError("give a process_group or a process_set, not both")
        if period == 1:
            warnings.warn(
                "with period=1 DistributedOptimizer or DistributedDataParallel do the same for less communication",
                stacklevel=2,
            )
        self.period, self.warmup_steps, self.process_group = period, warmup_steps, process_group
        self.step = 0
        """The number of calls of `average_parameters` so far; it may be set, say when a training is resumed."""
        self._process_set: ProcessSet | None = process_set
        if process_group is not None:
            is_member = dist.get_rank(process_group) >= 0
            ranks = dist.get_process_group_ranks(process_group) if is_member else []
            self._process_set = default.process_sets().among(ranks) if is_member else None
        elif not process_set.included():
            self._process_set = None
        if self._process_set is not None:
            number = session_of(self._process_set).call_numbers.next("averager")
            self._name = f"averager{number or ''}"

    def average_parameters(self, params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]) -> None:
        """One more step: every `period` steps, the first time after `warmup_steps` of them, give `params` their mean
        over the ranks, uncompressed. Collective then, and blocks; ranks that do not average only count.

        Args:
            params: `model.parameters()`, or the groups of an optimizer; alike on all ranks.
        """
        found = _listed(params)  # also where nothing is due, so that what is wrong is found in the first step
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            self._average(found)
        self.step += 1

    def _average(self, parameters: Sequence[torch.Tensor]) -> None:
        if self._process_set is None or session_of(self._process_set).size == 1:
            return
        owner = session_of(self._process_set)
        held = [Held(f"{self._name}.{place}", parameter) for place, parameter in enumerate(parameters)]
        means = [TENSORS.copy(one.read()) for one in held]
        handles = []
        for place, (one, mean) in enumerate(zip(held, means, strict=True)):
            name, device = owner.tensor_name(OpKind.ALLREDUCE, one.name), TENSORS.device(mean)
            signature = OpSignature(
                name, OpKind.ALLREDUCE, TENSORS.dtype(mean), tuple(mean.shape), Average, on_device=device is not None
            )
            address, is_last = mean.data_ptr(), place == len(held) - 1
            handles.append(owner.submit(owner.register(signature), address, address, mean, wake=is_last, device=device))
        owner.synchronize_all(handles)
        for one, mean in zip(held, means, strict=True):
            one.write(mean)


def _listed(params: Iterable[Any]) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for each in params:
        for parameter in each["params"] if isinstance(each, dict) else [each]:
            if not isinstance(parameter, torch.Tensor):
                raise InvalidArgumentError(
                    f"params has a {type(parameter).__name__}: give model.parameters(), or optimizer.param_groups"
                )
            found[id(parameter)] = parameter
    return list(found.values())

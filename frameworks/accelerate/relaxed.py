"""Local SGD and DiLoCo for Accelerate, with the interface of `accelerate.local_sgd.LocalSGD`.

with casync.accelerate.local_sgd(accelerator, model, local_sgd_steps=8, compression="onebit") as local_sgd:
    for batch in data:
        with accelerator.accumulate(model):
            ...
            optimizer.step()
            local_sgd.step()
"""

from __future__ import annotations

from typing import Any, TypeVar

import casync.torch as hvd
import torch
from casync.torch import relaxed

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from casync.errors import InvalidArgumentError, NotAvailableError

__all__ = ["DiLoCo", "LocalSGD", "NotEnabled", "diloco", "local_sgd"]

_S = TypeVar("_S", bound="_CalledSteps")
_WHOLE = ("NO", "MULTI_CPU", "MULTI_GPU")  # where each process has a model of its own


class _CalledSteps(relaxed.LocalSGD):
    """The program says where a step ends, and the optimizer whether it was one."""

    num_steps = 0
    """The calls of `step()`."""
    _has_stepped = False

    def _stepped(self, *_: object) -> None:
        self._has_stepped = True

    def step(self) -> None:
        """The end of a step. Counts if the optimizer has made one since the last call, and none that accumulated or was
        skipped. Blocks where a round is due.
        """
        self.num_steps += 1
        if self._has_stepped:
            self._has_stepped = False
            super()._stepped()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._has_stepped:  # else what was not counted would be in no round
            self.step()
        super().__exit__(kind, error, trace)


class LocalSGD(_CalledSteps):
    """`casync.torch.LocalSGD`, whose steps the program counts."""


class DiLoCo(_CalledSteps, relaxed.DiLoCo):
    """`casync.torch.DiLoCo`, whose steps the program counts."""


class NotEnabled:
    """What counts calls and does nothing else."""

    num_steps = 0

    def __enter__(self) -> NotEnabled:
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self) -> None:
        """The end of a step."""
        self.num_steps += 1


def local_sgd(
    accelerator: Accelerator, model: torch.nn.Module, local_sgd_steps: int, enabled: bool = True, **settings: Any
) -> LocalSGD | NotEnabled:
    """Local SGD of a model that `accelerator.prepare` returned, together with its optimizer. A context, in which
    gradients are each rank's own. `step()` is called after each step of the optimizer, and after it all ranks have the
    same parameters. Accelerate's own counts all calls of `step()`; this one those in which the optimizer made a step.

    Args:
        local_sgd_steps: steps of the optimizer between two rounds.
        enabled: False leaves all as it is, and `step()` does nothing.
        settings: what `casync.torch.LocalSGD` takes beside model and optimizer: `compression`, `delay` and so on.
    """
    if not enabled:
        return NotEnabled()
    inner, optimizers = _found(accelerator, model)
    return LocalSGD(inner, optimizers, local_sgd_steps, **settings)


def diloco(
    accelerator: Accelerator,
    model: torch.nn.Module,
    sync_every: int = 100,
    enabled: bool = True,
    outer_optimizer: Any = None,
    **settings: Any,
) -> DiLoCo | NotEnabled:
    """DiLoCo, used as `local_sgd`.

    Args:
        sync_every: steps of the optimizer between two rounds of one fragment.
        enabled: False leaves all as it is, and `step()` does nothing.
        outer_optimizer: one of torch's, over the parameters of `model`. None: SGD(lr=0.7, momentum=0.9, nesterov=True).
        settings: what `casync.torch.DiLoCo` takes beside these: `compression`, `num_fragments` and so on.
    """
    if not enabled:
        return NotEnabled()
    inner, optimizers = _found(accelerator, model)
    return DiLoCo(inner, optimizers, outer_optimizer, sync_every, **settings)


def _found(accelerator: Accelerator, model: torch.nn.Module) -> tuple[torch.nn.Module, list[torch.optim.Optimizer]]:
    """The model that Accelerate may have compiled, and its optimizers without what Accelerate puts around them."""
    kind = accelerator.distributed_type.value
    if kind not in _WHOLE:
        raise NotAvailableError(f"local steps need a whole model on each rank, and Accelerate's is {kind}: use DDP")
    model = getattr(model, "_orig_mod", model)
    parameters = {id(parameter) for parameter in model.parameters()}
    found: list[torch.optim.Optimizer] = []
    for prepared in accelerator._optimizers:
        optimizer = prepared.optimizer if isinstance(prepared, AcceleratedOptimizer) else prepared
        if any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
            found.append(optimizer)
    if not found:
        raise InvalidArgumentError("Accelerate knows no optimizer of this model: give both to accelerator.prepare()")
    hvd.init()
    return model, found

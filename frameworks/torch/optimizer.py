"""DistributedOptimizer: an optimizer whose gradients are synchronised while backward still runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from casync.codecs import specs as codecs
from casync.codecs.compression import Compression
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.collectives.settings import Settings
from casync.observe.compression_monitor import CompressionMonitor
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Adasum, Average

from .adasum_optimizer import DeltaOptimizer
from .loss_scale import LossScale
from .parameter_names import names_of, shapes_of
from .wrapped_optimizer import _DistributedOptimizer

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: CompressionLike = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    rules: CodecsByName | None = None,
    min_numel: int | None = None,
    topology: str | None = None,
    momentum: float | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
    monitor: CompressionMonitor | None = None,
) -> _DistributedOptimizer:
    """An optimizer of the same class that steps with gradients reduced over all ranks.

    Args:
        optimizer: any `torch.optim.Optimizer`. Its state and parameter groups are taken over, so use only the result
            from now on. One that this function gave is wrapped anew, with the arguments of this call.
        named_parameters: `model.named_parameters()`. Names appear in messages and in checkpoints; without them
            parameters are numbered. Two optimizers that compress must not share names.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name, of which the first whose pattern
            matches is taken: `{"*.bias": "none", "head.weight": "fp16", "*": "onebit"}`. A name in full overrides
            `Config.min_numel`. `Compression.none` takes `Config.compression`.
        backward_passes_per_step: how many backward passes add up locally before gradients are synchronised.
        op: Average, Sum, Min, Max or Product. Or Adasum: each rank's optimizer makes a step of its own from its own
            gradients, and what these steps change is reduced (docs/adasum.md).
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after: with
            Average.
        num_groups: deprecated, the same as `groups`.
        groups: lists of parameters whose gradients are submitted together, when backward has reached all of a list;
            others go alone. Or a number: all parameters in their order, in so many lists of equal length. Small
            gradients are batched without it as well. Ranks need not give the same.
        sparse_as_dense: sparse gradients (of `Embedding(sparse=True)`) travel as dense tensors, with the codec that
            their name has. False: ranks exchange the elements that there are, uncompressed or in 16 bits, with Average
            or Sum.
        process_set: the ranks whose gradients are reduced together. On other ranks nothing is: the optimizer steps with
            their own.
        rules: codecs by name, in place of `compression`.
        min_numel: gradients of fewer elements are exact; None takes `Config.min_numel`.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        momentum: for codecs that take over the optimizer's momentum (dgc). None takes SGD's, group by group, and
            switches it off there; any other optimizer needs a number, 0 if it has none to take over.
        grad_scaler: the GradScaler that scales the loss, if there is one and a codec keeps residuals.
        monitor: measures what codecs do to gradients, and warns or falls back; None takes `Config.watch_codecs`.

    `init()` comes first. Call `step()` and the rest on one thread; hooks run on the thread that runs backward.

    A step synchronises what the optimizer holds and what required a gradient when backward began, on all ranks alike. A
    parameter belongs to the last optimizer that it was given to: an earlier one raises `InvalidArgumentError` where it
    is used next, unless the later one is gone.
    """
    settings = Settings.of(
        compression=compression,
        topology=topology,
        rules=rules,
        min_numel=min_numel,
        process_set=process_set,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        num_groups=num_groups,
        groups=groups,
        is_parameter=torch.Tensor,
        sparse_as_dense=sparse_as_dense,
        monitor=monitor,
        may_watch=True,
    )
    if isinstance(optimizer, _DistributedOptimizer):  # wrapping twice is wrapping once, with what is said now
        original = optimizer._wrapped_class
        named_parameters = optimizer._unwrap(named_parameters)
    else:
        original = type(optimizer)
    names = names_of(optimizer, named_parameters)
    held = {parameter: names[parameter] for group in optimizer.param_groups for parameter in group["params"]}
    codecs.check_rules(settings.rules, shapes_of(held), may_warn=default.session().rank == 0)
    base = DeltaOptimizer if settings.op == Adasum and settings.is_distributed else _DistributedOptimizer
    own = {"__module__": __name__, "__doc__": original.__doc__, "_wrapped_class": original}
    cls: type[_DistributedOptimizer] = type(original.__name__, (base, original), own)
    distributed = cls.__new__(cls)
    distributed._adopt(optimizer, settings, LossScale(grad_scaler, settings.rules), momentum, names)
    return distributed

"""CaSync for Accelerate: one line between `Accelerator()` and `prepare()`.

accelerator = Accelerator()
accelerator.ddp_handler = casync.accelerate.ddp_kwargs(compression="onebit")
"""

from __future__ import annotations

import gc
from typing import Any

import casync.torch as hvd
import torch

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.observe.compression_monitor import CompressionMonitor

from .relaxed import diloco, local_sgd

__all__ = ["ddp_kwargs", "diloco", "local_sgd"]


def ddp_kwargs(
    compression: CompressionLike = None,
    *,
    rules: CodecsByName | None = None,
    min_numel: int | None = None,
    topology: str | None = None,
    monitor: CompressionMonitor | None = None,
    **ddp: Any,
) -> DistributedDataParallelKwargs:
    """Has each model that `accelerator.prepare` wraps in DDP synchronise through CaSync, on GPUs and on CPUs.

    Assign it to `accelerator.ddp_handler`: in `kwargs_handlers` Accelerate knows its own classes only. Of several
    models those whose parameters' names are taken have `ddp1.`, `ddp2.` and so on before them where ranks meet, in the
    order of `prepare`; rules are for the names without that. With mixed precision in float16 residuals follow
    the scale of the accelerator's `scaler`.

    Args:
        compression: a codec, or codecs by the names of the model's parameters, as in `casync.torch.ddp_state`. None
            takes `CASYNC_COMPRESSION`.
        rules, min_numel, topology, monitor: as there. The accelerator's scaler is found.
        ddp: what `DistributedDataParallelKwargs` takes, but for its hook.
    """

    class Handler(DistributedDataParallelKwargs):  # type: ignore[misc]
        def register_comm_hook(self, model: Any) -> None:
            hvd.init()
            accelerator = _accelerator_of(self, model.module)
            scaler = getattr(accelerator, "scaler", None)
            state = hvd.ddp_state(
                compression,
                model.module.named_parameters(),
                rules=rules,
                min_numel=min_numel,
                topology=topology,
                monitor=monitor,
                grad_scaler=scaler if isinstance(scaler, torch.amp.GradScaler) else None,
            )
            model.register_comm_hook(state, hvd.ddp_hook)

    return Handler(**ddp)


def _accelerator_of(handler: Any, module: torch.nn.Module) -> Any:
    """Find the Accelerator that is about to prepare `module` with `handler`, which Accelerate does not tell it. None if
    a program does so by itself.
    """
    for holder in gc.get_objects():
        if issubclass(type(holder), Accelerator) and getattr(holder, "ddp_handler", None) is handler:
            if any(model is module for model in holder._models):
                return holder
    return None

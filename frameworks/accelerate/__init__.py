"""CaSync for Accelerate: one line between `Accelerator()` and `prepare()`.

accelerator = Accelerator()
accelerator.ddp_handler = casync.accelerate.ddp_kwargs(compression="onebit")
"""

from __future__ import annotations

from typing import Any

import casync.torch as hvd

from accelerate.utils import DistributedDataParallelKwargs

__all__ = ["ddp_kwargs"]


def ddp_kwargs(compression: Any = "none", *, topology: str | None = None, **ddp: Any) -> DistributedDataParallelKwargs:
    """Has each model that `accelerator.prepare` wraps in DDP synchronise through CaSync, on GPUs and on CPUs.

    Assign it to `accelerator.ddp_handler`: in `kwargs_handlers` Accelerate knows its own classes only.

    Args:
        compression: a codec, or codecs by the names of the model's parameters, as in `casync.torch.ddp_state`.
        topology: as there.
        ddp: what `DistributedDataParallelKwargs` takes, but for its hook.
    """

    class Handler(DistributedDataParallelKwargs):  # type: ignore[misc]
        def register_comm_hook(self, model: Any) -> None:
            hvd.init()
            state = hvd.ddp_state(compression, model.module.named_parameters(), topology=topology)
            model.register_comm_hook(state, hvd.ddp_hook)

    return Handler(**ddp)

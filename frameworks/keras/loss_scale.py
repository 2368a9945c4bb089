"""Mixed precision: ranks agree whether a step's gradients are finite.

`LossScaleOptimizer` applies gradients only if all are finite, and moves its scale by that. It asks before the gradients
are reduced, so each rank would decide by its own; one that skips a step would leave the others waiting.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import keras
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Min

__all__ = ["watch"]


@functools.cache
def watch() -> None:
    """Have every `LossScaleOptimizer` around a distributed optimizer ask all ranks. Others are as they were."""
    scaler = keras.optimizers.LossScaleOptimizer
    own = scaler.check_finite

    @functools.wraps(own)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = own(self, grads)
        kept = getattr(self.inner_optimizer, "_casync", None)
        if kept is None or not kept[0].settings.is_distributed:
            return finite
        return _everywhere(finite, kept[0].settings.process_set, self.inner_optimizer.name)

    scaler.check_finite = check_finite


def _everywhere(finite: Any, process_set: ProcessSet, name: str) -> Any:
    full = f"{name}.finite"
    hvd = importlib.import_module(f"casync.{keras.backend.backend()}")
    number = hvd.allreduce(keras.ops.cast(finite, "int32"), name=full, op=Min, process_set=process_set)
    return keras.ops.cast(number, "bool")

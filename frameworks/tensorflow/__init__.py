"""CaSync for TensorFlow 2: `import casync.tensorflow as hvd` where `import horovod.tensorflow as hvd` stood.

    import casync.tensorflow as hvd

    hvd.init()
    tape = hvd.DistributedGradientTape(tape, compression="onebit")
    hvd.broadcast_variables(model.variables, root_rank=0)

With Keras take `casync.keras` (or `casync.tensorflow.keras`, which is the same). Start it with `casyncrun -np 4 python
train.py`; a plain `python train.py` is a world of one.
"""

from __future__ import annotations

from typing import Any

from casync.collectives import exports
from casync.collectives.exports import *

from . import functions, library, ops
from .functions import *  # type: ignore[assignment]
from .ops import *
from .optimizer import DistributedOptimizer
from .relaxed import DiLoCo, LocalSGD
from .tape import DistributedGradientTape, PartialDistributedGradientTape

library.operations()

__all__ = [
    "DiLoCo",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalSGD",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405
]
__all__ += {*exports.__all__, *functions.__all__, *ops.__all__}

# Horovod's names that are not there: an error that says so is better than one that looks like a misspelling.
_LATER = frozenset(("data", "elastic", "xla_mpi_ops"))


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # a layer of Keras, which takes its time to import
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name in _LATER:
        raise AttributeError(f"casync.tensorflow.{name} is part of Horovod's interface and not there yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

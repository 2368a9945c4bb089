"""CaSync for PyTorch: `import casync.torch as hvd` where `import horovod.torch as hvd` stood.

    import casync.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="onebit")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

Start it with `casyncrun -np 4 python train.py`; a plain `python train.py` is a world of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from casync.collectives import exports
from casync.collectives.exports import *
from casync.observe.compression_monitor import CompressionMonitor

from . import c10d, mpi_ops, ops
from .c10d_options import BackendOptions, Options
from .ddp import ddp_hook, ddp_state
from .functions import broadcast_optimizer_state, broadcast_parameters
from .ops import *
from .optimizer import DistributedOptimizer
from .sparse_tensors import sparse_allreduce_async
from .sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from .averagers import PeriodicModelAverager
    from .relaxed import DiLoCo, LocalSGD

__all__ = [
    "BackendOptions",
    "CompressionMonitor",
    "DiLoCo",
    "DistributedOptimizer",
    "LocalSGD",
    "Options",
    "PeriodicModelAverager",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "ddp_state",
    "mpi_ops",
    "sparse_allreduce_async",
]
__all__ += exports.__all__
__all__ += ops.__all__

c10d.register()

# Horovod's names that are not there yet: an error that says so is better than one that looks like a misspelling.
_LATER = frozenset(("elastic",))


def __getattr__(name: str) -> Any:
    if name in ("DiLoCo", "LocalSGD"):  # loaded by those who use them
        from . import relaxed

        return getattr(relaxed, name)
    if name == "PeriodicModelAverager":
        from . import averagers

        return averagers.PeriodicModelAverager
    if name in _LATER:
        raise AttributeError(f"casync.torch.{name} is part of Horovod's interface and not there yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

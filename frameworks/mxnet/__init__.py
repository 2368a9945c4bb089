"""CaSync for Apache MXNet: `import casync.mxnet as hvd` where `import horovod.mxnet as hvd` stood.

    import casync.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, compression="onebit")

Start it with `casyncrun -np 4 python train.py`; a plain `python train.py` is a world of one. MXNet 1.9.1 is archived
and needs NumPy 1: importing this module first also imports MXNet where NumPy is 1.24 or newer.
"""

from __future__ import annotations

from casync.collectives import exports
from casync.collectives.exports import *

from . import failures, ops
from .functions import broadcast_parameters, shutdown
from .kvstore import CaSync
from .ops import *
from .optimizer import DistributedOptimizer
from .relaxed import DiLoCo, LocalSGD
from .trainer import DistributedTrainer

__all__ = [
    "CaSync",
    "DiLoCo",
    "DistributedOptimizer",
    "DistributedTrainer",
    "LocalSGD",
    "broadcast_parameters",
    "shutdown",
]
__all__ += [name for name in exports.__all__ if name not in __all__]
__all__ += ops.__all__

failures.register()

"""CaSync for TensorFlow 2: `import casync.tensorflow as hvd` where `import horovod.tensorflow as hvd` stood.

    import casync.tensorflow as hvd

    hvd.init()
    tape = hvd.DistributedGradientTape(tape, compression="onebit")
    hvd.broadcast_variables(model.variables, root_rank=0)

With Keras take `casync.keras` (or `casync.tensorflow.keras`, which is the same). Start it with `casyncrun -np 4 python
train.py`; a plain `python train.py` is a world of one.
"""

from __future__ import annotations

from casync.collectives import exports
from casync.collectives.exports import *

from . import library, ops
from .ops import *

library.operations()

__all__ = [*exports.__all__, *ops.__all__]

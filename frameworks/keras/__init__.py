"""CaSync for Keras 3, on TensorFlow or torch: `import casync.keras as hvd` where `import horovod.keras as hvd` stood.

    import casync.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(), compression="onebit"), loss="mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Start it with `casyncrun -np 4 python train.py`; a plain `python train.py` is a world of one.
"""

from __future__ import annotations

from typing import NoReturn

from casync.errors import NotAvailableError

try:
    import keras
except ImportError as error:
    raise NotAvailableError(
        f"casync.keras needs Keras 3, which cannot be imported here ({error}): pip install keras"
    ) from error
if int(keras.__version__.partition(".")[0]) < 3:
    raise NotAvailableError(f"casync.keras needs Keras 3, and this is {keras.__version__}: pip install 'keras>=3'")

from casync.collectives import exports
from casync.collectives.exports import *

from . import callbacks, values
from .models import load_model
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .relaxed import DiLoCo, LocalSGD
from .values import *

__all__ = ["DiLoCo", "DistributedOptimizer", "LocalSGD", "PartialDistributedOptimizer", "callbacks", "load_model"]
__all__ += {*exports.__all__, *values.__all__}


def __getattr__(name: str) -> NoReturn:
    if name == "elastic":
        raise AttributeError(f"casync.keras.{name} is part of Horovod's interface and not there yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

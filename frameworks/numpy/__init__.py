"""CaSync for NumPy arrays, and for anything that gives DLPack its memory on the host.

    import casync.numpy as hvd

    hvd.init()
    mean = hvd.allreduce(numpy.arange(10.0) * hvd.rank())
    hvd.allreduce_(array, name="gradient", compression="onebit")

Start it with `casyncrun -np 4 python program.py`; a plain `python program.py` is a world of one. Results are NumPy's. A
tensor of another framework is read, and by what works in place written, where it lies.
"""

from __future__ import annotations

from casync.collectives import exports
from casync.collectives.exports import *

from . import ops
from .ops import *
from .relaxed import DiLoCo, LocalSGD

__all__ = ["DiLoCo", "LocalSGD", *exports.__all__, *ops.__all__]

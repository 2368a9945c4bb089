"""`casync.keras` under Horovod's other name."""

from __future__ import annotations

from casync.keras import *  # its `callbacks` are those that the module here has, too

from casync import keras as _keras

__all__ = list(_keras.__all__)
__getattr__ = _keras.__getattr__

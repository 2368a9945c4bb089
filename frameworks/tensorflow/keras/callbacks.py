"""`casync.keras.callbacks` under Horovod's other name."""

from __future__ import annotations

from casync.keras import callbacks
from casync.keras.callbacks import *

__all__ = list(callbacks.__all__)

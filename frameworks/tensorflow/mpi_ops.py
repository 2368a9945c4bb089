"""Horovod's `horovod.tensorflow.mpi_ops`, for scripts that import operations from there. The objects are those of
`casync.tensorflow`.
"""

from __future__ import annotations

from casync.collectives import exports
from casync.collectives.exports import *

from . import functions, ops
from .functions import *  # type: ignore[assignment]
from .ops import *

__all__ = sorted({*exports.__all__, *functions.__all__, *ops.__all__})

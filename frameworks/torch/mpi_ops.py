"""Horovod's `horovod.torch.mpi_ops`, for scripts that import operations from there. The objects are those of
`casync.torch`.
"""

# ruff: noqa: F401

from casync.collectives import exports
from casync.collectives.exports import *
from casync.session import world_info as _basics

from . import autograd, ops
from .autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from .ops import *
from .sparse_tensors import sparse_allreduce_async

_ELSEWHERE = {name for name in exports.__all__ if name.endswith("Error") and name != "HorovodInternalError"}
_ELSEWHERE |= {"allgather_object", "broadcast_object", "counters", "metrics", "plans"}

__all__ = sorted(
    {"_basics", "sparse_allreduce_async", *exports.__all__, *ops.__all__} - _ELSEWHERE
    | {name for name in autograd.__all__ if name.startswith("Horovod")}
)

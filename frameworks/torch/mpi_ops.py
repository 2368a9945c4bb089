"""Horovod's `horovod.torch.mpi_ops`, for scripts that import operations from there. The objects are those of
`casync.torch`.
"""

# ruff: noqa: F401

from casync.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from casync.errors import HorovodInternalError
from casync.process_sets import ProcessSet
from casync.terms import Adasum, Average, Max, Min, Product, Sum

from . import basics as _basics
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
from .basics import (
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .compression import Compression
from .exchange import alltoall, alltoall_async
from .grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from .joining import join
from .ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from .scatter import reducescatter, reducescatter_async
from .sparse import sparse_allreduce_async
from .waiting import barrier, poll, synchronize

__all__ = [name for name in dir() if not name.startswith("__")]

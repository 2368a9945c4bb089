"""CaSync for PyTorch: `import casync.torch as hvd` where `import horovod.torch as hvd` stood.

    import casync.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="onebit")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

Start it with `casyncrun -np 4 python train.py`; a plain `python train.py` is a world of one.
"""

from __future__ import annotations

from typing import NoReturn

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
from casync.errors import (
    AbortedError,
    CasyncError,
    CorruptPayloadError,
    HorovodInternalError,
    InvalidArgumentError,
    MismatchError,
    NotAvailableError,
    PeerFailureError,
    StallError,
)
from casync.process_sets import ProcessSet
from casync.terms import Adasum, Average, Max, Min, Product, Sum

from . import mpi_ops
from .basics import (
    add_process_set,
    counters,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    plans,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .compression import Compression
from .ddp import ddp_hook, ddp_state
from .exchange import alltoall, alltoall_async
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
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
from .optimizer import DistributedOptimizer
from .scatter import reducescatter, reducescatter_async
from .sparse import sparse_allreduce_async
from .sync_batch_norm import SyncBatchNorm
from .waiting import barrier, poll, synchronize

__all__ = [
    "AbortedError",
    "Adasum",
    "Average",
    "CasyncError",
    "Compression",
    "CorruptPayloadError",
    "DistributedOptimizer",
    "HorovodInternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NotAvailableError",
    "PeerFailureError",
    "ProcessSet",
    "Product",
    "StallError",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "ddp_state",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "plans",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

# Horovod's names that are not there yet: an error that says so is better than one that looks like a misspelling.
_LATER = frozenset(("elastic",))


def __getattr__(name: str) -> NoReturn:
    if name in _LATER:
        raise AttributeError(f"casync.torch.{name} is part of Horovod's interface and not there yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

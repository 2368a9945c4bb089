"""Operations on JAX's arrays."""

from __future__ import annotations

from casync.collectives.interface import Collectives

from .tensors import TENSORS

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

_hvd = Collectives(TENSORS)
allgather = _hvd.allgather
allgather_async = _hvd.allgather_async
allreduce = _hvd.allreduce
allreduce_async = _hvd.allreduce_async
alltoall = _hvd.alltoall
alltoall_async = _hvd.alltoall_async
broadcast = _hvd.broadcast
broadcast_async = _hvd.broadcast_async
grouped_allgather = _hvd.grouped_allgather
grouped_allgather_async = _hvd.grouped_allgather_async
grouped_allreduce = _hvd.grouped_allreduce
grouped_allreduce_async = _hvd.grouped_allreduce_async
grouped_reducescatter = _hvd.grouped_reducescatter
grouped_reducescatter_async = _hvd.grouped_reducescatter_async
reducescatter = _hvd.reducescatter
reducescatter_async = _hvd.reducescatter_async

"""Operations on torch's tensors. Those that block are differentiable."""

from __future__ import annotations

import torch
from casync.collectives.interface import Collectives

from .autograd import Autograd
from .tensors import TENSORS

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

_hvd: Collectives[torch.Tensor] = Collectives(TENSORS, Autograd())
allgather = _hvd.allgather
allgather_async = _hvd.allgather_async
allreduce = _hvd.allreduce
allreduce_ = _hvd.allreduce_
allreduce_async = _hvd.allreduce_async
allreduce_async_ = _hvd.allreduce_async_
alltoall = _hvd.alltoall
alltoall_async = _hvd.alltoall_async
broadcast = _hvd.broadcast
broadcast_ = _hvd.broadcast_
broadcast_async = _hvd.broadcast_async
broadcast_async_ = _hvd.broadcast_async_
grouped_allgather = _hvd.grouped_allgather
grouped_allgather_async = _hvd.grouped_allgather_async
grouped_allreduce = _hvd.grouped_allreduce
grouped_allreduce_ = _hvd.grouped_allreduce_
grouped_allreduce_async = _hvd.grouped_allreduce_async
grouped_allreduce_async_ = _hvd.grouped_allreduce_async_
grouped_reducescatter = _hvd.grouped_reducescatter
grouped_reducescatter_async = _hvd.grouped_reducescatter_async
reducescatter = _hvd.reducescatter
reducescatter_async = _hvd.reducescatter_async

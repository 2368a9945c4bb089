"""Operations on TensorFlow's tensors, with Horovod's arguments: at once if eager, else as parts of the graph.

`device_dense` and `device_sparse` are accepted and not needed. Names have no scope, whatever `ignore_name_scope` says,
so that an eager rank may meet one that runs a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.allreduce import codec_of
from casync.collectives.interface import Collectives
from casync.collectives.sparse_exchange import wire_dtype
from casync.errors import NotAvailableError
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.signature import Average, Sum, resolve_op

from .autograd import Autograd
from .errors import public
from .graph import Graph
from .tensors import TENSORS, scaled, shape_of

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

_EAGER: Collectives[Any] = Collectives(TENSORS, Autograd())
_GRAPH: Collectives[Any] = Collectives(TENSORS, Autograd(), Graph())
allgather_async = _EAGER.allgather_async
allreduce_async = _EAGER.allreduce_async
alltoall_async = _EAGER.alltoall_async
broadcast_async = _EAGER.broadcast_async
grouped_allgather_async = _EAGER.grouped_allgather_async
grouped_allreduce_async = _EAGER.grouped_allreduce_async
grouped_reducescatter_async = _EAGER.grouped_reducescatter_async
reducescatter_async = _EAGER.reducescatter_async


def _hvd() -> Collectives[Any]:
    return _EAGER if tf.executing_eagerly() else _GRAPH


def _tensor(value: Any) -> Any:
    """Return `value` as a tensor, also if it is a variable, a list or an array. Text is refused."""
    if isinstance(value, str):
        TENSORS.admit(value)  # which refuses it
    return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)


@public
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    *,
    topology: str | None = None,
) -> Any:
    """The tensor reduced over all ranks. Arguments are those of `casync.torch.allreduce`. Differentiable for Sum and
    Average.

    Of `tf.IndexedSlices` the slices of all ranks are returned: of float dtypes, with op Sum or Average, and without
    factors; `compression` is then none, fp16 or bf16.
    """
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotAvailableError(
                "prescale_factor and postscale_factor are not supported for tf.IndexedSlices: give a dense tensor, or "
                "multiply the values"
            )
        return allreduce_slices(tensor, name, resolve_op(op, average), process_set, compression)
    return _hvd().allreduce(
        _tensor(tensor), average, name, compression, op, prescale_factor, postscale_factor, process_set,
        topology=topology,
    )  # fmt: skip


def allreduce_slices(
    slices: Any, name: str | None, op: int, process_set: ProcessSet, compression: CompressionLike
) -> Any:
    """`allreduce` of `tf.IndexedSlices`: two allgathers, `<name>.indices` and `<name>.values`."""
    if op not in (Average, Sum):
        raise NotAvailableError(
            "tf.IndexedSlices are reduced with op Sum or Average: give tf.convert_to_tensor() of them for the others"
        )
    wire = wire_dtype(name or "", codec_of(compression, name or "", shape_of(slices)))
    indices_name, values_name = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    indices = _hvd().allgather(slices.indices, indices_name, process_set)
    given = slices.values if wire is None else tf.cast(slices.values, wire)
    values = tf.cast(_hvd().allgather(given, values_name, process_set), slices.values.dtype)
    if op == Average:
        values = scaled(values, 1.0 / session_of(process_set).size)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@public
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`allreduce` of several dense tensors together; new tensors in the order given. Differentiable."""
    return _hvd().grouped_allreduce(
        [_tensor(tensor) for tensor in tensors], average, name, compression, op, prescale_factor, postscale_factor,
        process_set,
    )  # fmt: skip


@public
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """The tensors of all ranks in rank order along the first dimension, which may differ. Differentiable."""
    return _hvd().allgather(_tensor(tensor), name, process_set)


@public
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several tensors together; new tensors in the order given. Differentiable."""
    return _hvd().grouped_allgather([_tensor(tensor) for tensor in tensors], name, process_set)


@public
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of the rank that is `root_rank` in the world, on every rank of the set. Differentiable."""
    return _hvd().broadcast(_tensor(tensor), root_rank, name, process_set)


@public
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows that all ranks have for this one. With `splits`, an int32 vector of this rank's rows for each, also how
    many rows came from each rank. Differentiable.
    """
    return _hvd().alltoall(_tensor(tensor), splits, name, process_set)


@public
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: CompressionLike = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the tensor reduced over all ranks; the first ranks have a row more if they do not come out
    even. Differentiable.
    """
    if isinstance(tensor, tf.IndexedSlices):
        raise NotAvailableError("reducescatter takes dense tensors: give tf.convert_to_tensor() of tf.IndexedSlices")
    factors = (prescale_factor, postscale_factor)
    return _hvd().reducescatter(_tensor(tensor), name, compression, op, process_set, *factors)


@public
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: CompressionLike = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: str | None = None,
) -> list[Any]:
    """`reducescatter` of several tensors together; new tensors in the order given. Differentiable."""
    given = [_tensor(tensor) for tensor in tensors]
    return _hvd().grouped_reducescatter(given, name, compression, op, process_set, prescale_factor, postscale_factor)

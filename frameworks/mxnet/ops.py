"""Operations on MXNet's arrays.

Those of Horovod's names are given to MXNet's engine and return at once: the result is an array like any other, whose
values come later. A wrong argument is an error at the call; what goes wrong later is raised where the result, or what
was computed from it, is waited for. Names, shapes and dtypes are of that moment, so nothing waits for the input either.
None is differentiable, as none of Horovod's is for MXNet.

The others, with handles, take an address at the call. They wait for their input, and return when it is submitted.
"""

from __future__ import annotations

import array
import ctypes
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives import allgather as _allgather
from casync.collectives import allreduce as _allreduce
from casync.collectives import alltoall as _alltoall
from casync.collectives import broadcast as _broadcast
from casync.collectives import reducescatter as _reducescatter
from casync.collectives.grouped import check_group
from casync.collectives.interface import Collectives
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.default import session_of
from casync.session.gather_bytes import gather_bytes
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from casync.tensors.adaptor import about
from casync.tensors.signature import Average, OpKind, OpSignature, resolve_op

from .engine import Operation, push
from .loading import mx
from .tensors import LAZY, TENSORS, NDArray

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

_hvd = Collectives(TENSORS)
allgather_async = _hvd.allgather_async
allreduce_async = _hvd.allreduce_async
allreduce_async_ = _hvd.allreduce_async_
broadcast_async = _hvd.broadcast_async
broadcast_async_ = _hvd.broadcast_async_
grouped_allgather_async = _hvd.grouped_allgather_async
grouped_allreduce_async = _hvd.grouped_allreduce_async
grouped_allreduce_async_ = _hvd.grouped_allreduce_async_
grouped_reducescatter_async = _hvd.grouped_reducescatter_async
reducescatter_async = _hvd.reducescatter_async


def allreduce(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    *,
    compression: CompressionLike = Compression.none,
    topology: str | None = None,
) -> NDArray:
    """The array reduced over all ranks, as a new array of the same shape and dtype. Does not wait.

    Args:
        tensor: of one shape and dtype on all ranks.
        average: deprecated; True is `op=Average`, False is `op=Sum`.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order. One name is
            for one operation at a time: wait for its result before the next.
        priority: of arrays that wait, for MXNet or for a link, that with the highest goes first; alike on all ranks.
        prescale_factor: multiplies the array before it is summed; with Sum, Average and Adasum.
        postscale_factor: multiplies the result; with Sum, Average and Adasum.
        process_set: the ranks that take part; all by default.
        op: Average (default), Sum, Adasum, Min, Max or Product. Average of integers truncates towards zero.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name as in `DistributedTrainer`; float
            arrays with Sum and Average.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
    """
    owner, op, scales = session_of(process_set), resolve_op(op, average), (prescale_factor, postscale_factor)
    tensor = _admitted(tensor, name)
    terms = _allreduce.terms_of(LAZY, owner, tensor, name, op, scales, compression, topology)._replace(
        priority=priority
    )
    registration = owner.register(terms)
    if prescale_factor == 1.0 and _is_plain(tensor):
        result = LAZY.empty(tensor.shape, tensor)
        operation = Operation(registration, tensor, result)
    else:
        result = LAZY.scaled(tensor, prescale_factor)
        operation = Operation(registration, result)
    push(owner, process_set, [operation], priority, terms.name)
    return result if postscale_factor == 1.0 else LAZY.scaled(result, postscale_factor)


def allreduce_(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    *,
    compression: CompressionLike = Compression.none,
    topology: str | None = None,
) -> NDArray:
    """`allreduce`, with its arguments, whose result replaces the array's values; returns the array. Does not wait."""
    owner, op, scales = session_of(process_set), resolve_op(op, average), (prescale_factor, postscale_factor)
    if scales != _allreduce.UNSCALED or not _is_plain(_admitted(tensor, name)):
        result = allreduce(
            tensor, None, name, priority, *scales, process_set, op, compression=compression, topology=topology
        )
        LAZY.assign(tensor, result)
        return tensor
    tensor = _admitted(tensor, name)
    terms = _allreduce.terms_of(LAZY, owner, tensor, name, op, scales, compression, topology)._replace(
        priority=priority
    )
    registration = owner.register(terms)
    push(owner, process_set, [Operation(registration, tensor)], priority, terms.name)
    return tensor


def allgather(
    tensor: NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> NDArray:
    """The arrays of all ranks, in rank order along the first dimension, as a new array.

    Waits until all ranks have said how many rows they have, which is one small exchange, and not for the values. Arrays
    whose shapes or dtypes do not fit are an error at the call, on every rank.

    Args:
        tensor: with at least one dimension. The first may differ between ranks; the others and the dtype must not.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        priority: of arrays that wait, for MXNet or for a link, that with the highest goes first; alike on all ranks.
        process_set: the ranks that take part; all by default.
    """
    owner = session_of(process_set)
    tensor = _plain(_admitted(tensor, name))
    terms = _allgather.terms_of(LAZY, owner, tensor, name)._replace(priority=priority)
    registration, rows = owner.register(terms), tensor.shape[0]
    told = gather_bytes(owner, _exchange_of(terms), array.array("q", [rows, _likeness_of(terms)]).tobytes())
    everyones, likeness = zip(*(each.cast("q") for each in told), strict=True)
    output = LAZY.empty((sum(everyones), *tensor.shape[1:]), tensor)
    operation = Operation(registration, tensor, output, LAZY.nbytes(output), rows)
    push(owner, process_set, [operation], priority, terms.name)
    return _checked(output, likeness)


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Rank `root_rank`'s array, as a new array on every rank. Does not wait.

    Args:
        tensor: of one shape and dtype on all ranks.
        root_rank: its number in the world, also where a process set is given.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        priority: of arrays that wait, for MXNet or for a link, that with the highest goes first; alike on all ranks.
        process_set: the ranks that take part; all by default.
    """
    return broadcast_(LAZY.copy(_admitted(tensor, name)), root_rank, name, priority, process_set)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """`broadcast`, with its arguments, whose result replaces the array's values; returns the array. Does not wait."""
    owner = session_of(process_set)
    tensor = _admitted(tensor, name)
    terms = _broadcast.terms_of(LAZY, owner, tensor, root_rank, name, process_set)._replace(priority=priority)
    registration = owner.register(terms)
    values = _plain(tensor)
    push(owner, process_set, [Operation(registration, values)], priority, terms.name)
    if values is not tensor:
        LAZY.assign(tensor, values)
    return tensor


def alltoall(
    tensor: NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows that all ranks have for this one, in rank order, as a new array.

    Waits until all ranks have said how many rows they send, which is one small exchange, and not for the values. Arrays
    whose shapes or dtypes do not fit are an error at the call, on every rank.

    Args:
        tensor: its rows are dealt out to the ranks in their order; dtype and all dimensions but the first must be alike
            on all ranks.
        splits: how many rows go to each rank, 0 included: an array of int32, or a list. None: the same number to each.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        priority: of arrays that wait, for MXNet or for a link, that with the highest goes first; alike on all ranks.
        process_set: the ranks that take part; all by default.

    Returns the array, and, if `splits` is given, how many of its rows came from each rank, as an array of int32.
    """
    owner = session_of(process_set)
    tensor = _plain(_admitted(tensor, name))
    terms, counts = _alltoall.terms_of(LAZY, owner, tensor, _numbers(splits), name)
    terms = terms._replace(priority=priority)
    registration = owner.register(terms)
    received, likeness = _received(owner, terms, counts)
    output = LAZY.empty((sum(received), *tensor.shape[1:]), tensor)
    operation = Operation(registration, tensor, output, LAZY.nbytes(output), splits=counts)
    push(owner, process_set, [operation], priority, terms.name)
    _checked(output, likeness)
    return output if splits is None else (output, LAZY.from_ints(received, tensor))


def alltoall_async(
    tensor: NDArray, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Submit an alltoall, with arguments as `alltoall` has them, and return its handle, whose `synchronize` gives
    output and received splits, also without `splits`. `tensor` must not change before it returns.
    """
    return _hvd.alltoall_async(tensor, _numbers(splits), name, process_set)


def reducescatter(
    tensor: NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: CompressionLike = Compression.none,
) -> NDArray:
    """This rank's rows of the array reduced over all ranks, as a new array. Does not wait.

    The first dimension is dealt out in rank order; if it is no multiple of the number of ranks, the first ones have a
    row more.

    Args:
        tensor: of one shape and dtype on all ranks, with at least one dimension.
        op: Average or Sum. Average of integers truncates towards zero.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        priority: of arrays that wait, for MXNet or for a link, that with the highest goes first; alike on all ranks.
        process_set: the ranks that take part; all by default.
        prescale_factor: multiplies the array before it is summed.
        postscale_factor: multiplies the result.
        compression: a codec that reduces in one pass, or codecs by name as in `DistributedTrainer`; for float arrays.
    """
    owner, scales = session_of(process_set), (prescale_factor, postscale_factor)
    with about(name):
        tensor = _reducescatter.check(LAZY, tensor, op)
    terms = _reducescatter.terms_of(LAZY, owner, tensor, name, op, scales, compression)._replace(priority=priority)
    registration = owner.register(terms)
    source = _plain(tensor) if prescale_factor == 1.0 else LAZY.scaled(tensor, prescale_factor)
    output = LAZY.empty(_reducescatter.shape_of_share(owner, tensor.shape), tensor)
    push(owner, process_set, [Operation(registration, source, output)], priority, terms.name)
    return output if postscale_factor == 1.0 else LAZY.scaled(output, postscale_factor)


def _admitted(tensor: Any, name: str | None) -> NDArray:
    with about(name):
        tensor = LAZY.admit(tensor)
        LAZY.dtype(tensor)
        return tensor


def _is_plain(tensor: NDArray) -> bool:
    """Whether its values lie in the order of its indices. With three dimensions or more, oneDNN may have left them in
    blocks, and nobody can ask before they are there.
    """
    return len(tensor.shape) < 3


def _plain(tensor: NDArray) -> NDArray:
    """The array, or a copy whose values lie in order."""
    return tensor if _is_plain(tensor) else LAZY.copy(tensor)


def _exchange_of(terms: OpSignature) -> str:
    """The name of the operation that says how many rows will be sent."""
    kind, _, name = terms.name.partition(".")
    return f"{kind}.{name}: rows"


def _received(owner: Session, terms: OpSignature, counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return how many rows each rank sends, if this one sends `counts`; and the likeness of what each has."""
    likeness = _likeness_of(terms)
    mine = (ctypes.c_int64 * (2 * owner.size))(*(number for count in counts for number in (count, likeness)))
    registration = owner.register(OpSignature(_exchange_of(terms), OpKind.ALLTOALL, "int64", ()))
    two_each = [2] * owner.size
    handle = owner.submit(registration, ctypes.addressof(mine), 0, mine, wake=False, splits=two_each)
    data, _, _ = owner.synchronize_gather(handle)
    told = memoryview(data).cast("q").tolist()
    return told[::2], told[1::2]


def _likeness_of(terms: OpSignature) -> int:
    """A number that is the same for arrays whose dtypes and rows fit, and else most likely another one."""
    return zlib.crc32(repr((terms.dtype, tuple(terms.shape))).encode())


def _checked(output: NDArray, likeness: Sequence[int]) -> NDArray:
    """The output of an operation that was given to the engine; if what the ranks have is not alike, its error."""
    if len(set(likeness)) > 1:
        output.wait_to_read()
    return output


def _numbers(splits: Any) -> Any:
    return splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits


# --- several at once --------------------------------------------------------------------------------------------------


def _grouped(
    each: Callable[..., NDArray],
    kind: int,
    tensors: Sequence[NDArray],
    name: str | None,
    process_set: ProcessSet,
    **rest: Any,
) -> list[NDArray]:
    """`each` of all, under names of the group. A bad one is found before the first is given to the engine."""
    check_group(tensors)
    base = session_of(process_set).tensor_name(kind, name)
    for i, tensor in enumerate(tensors):
        _admitted(tensor, f"{base}.{i}")
    return [each(tensor, name=f"{base}.{i}", process_set=process_set, **rest) for i, tensor in enumerate(tensors)]


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    *,
    compression: CompressionLike = Compression.none,
) -> list[NDArray]:
    """`allreduce` of several arrays, of any shapes and dtypes, with its other arguments; new arrays in the order given.
    Does not wait.
    """
    return _grouped(
        allreduce, OpKind.ALLREDUCE, tensors, name, process_set, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, op=resolve_op(op, average), compression=compression,
    )  # fmt: skip


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    *,
    compression: CompressionLike = Compression.none,
) -> list[NDArray]:
    """`grouped_allreduce`, with its arguments, in place; returns the arrays. Does not wait."""
    return _grouped(
        allreduce_, OpKind.ALLREDUCE, tensors, name, process_set, priority=priority, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, op=resolve_op(op, average), compression=compression,
    )  # fmt: skip


def grouped_allgather(
    tensors: Sequence[NDArray], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[NDArray]:
    """`allgather` of several arrays, with its other arguments; new arrays in the order given. Waits for the numbers of
    rows, array by array.
    """
    return _grouped(allgather, OpKind.ALLGATHER, tensors, name, process_set, priority=priority)


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: CompressionLike = Compression.none,
) -> list[NDArray]:
    """`reducescatter` of several arrays, of any shapes and dtypes, with its other arguments; new arrays in the order
    given. Does not wait.
    """
    for i, tensor in enumerate(tensors):
        with about(None if name is None else f"{name}.{i}"):
            _reducescatter.check(LAZY, tensor, op)
    return _grouped(
        reducescatter, OpKind.REDUCESCATTER, tensors, name, process_set, op=op, priority=priority,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, compression=compression,
    )  # fmt: skip

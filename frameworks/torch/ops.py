"""Operations on one tensor: allreduce, allgather, broadcast.

Signatures and defaults are Horovod's; `compression=` and `topology=` of the asynchronous ones are ours. An operation is
submitted by pointer and never copied, unless its tensor is not contiguous. Any thread may call; two threads must not
use one name at a time.

Tensors are dense and on the CPU, of float32, float16, bfloat16, float64, int8, int16, int32, int64 or uint8; allgather
and broadcast take bool too. Anything else raises `NotAvailableError`. A wrong argument raises `InvalidArgumentError` (a
ValueError) at the call; ranks that disagree get a `MismatchError` where they wait, and the session stays usable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from casync import codecs, terms
from casync.codecs import codec_text
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.default import session_of
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.session import Session
from casync.terms import OpKind, Sum, Terms, resolve_op, tensor_name

from .compression import Compression
from .scaling import UNSCALED, scaled
from .waiting import Pending, synchronize

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
]

_DTYPE_NAMES = {getattr(torch, name): name for name in terms.DTYPES}


def dtype_name(tensor: torch.Tensor) -> str:
    """The core's name of the tensor's dtype. Raises `NotAvailableError` for what the core cannot read."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"a {type(tensor).__name__} is not a tensor")
    if not tensor.is_cpu:
        raise NotAvailableError(f"a tensor on {tensor.device}: this build synchronises CPU tensors; call .cpu() on it")
    if tensor.layout is not torch.strided:
        raise NotAvailableError(
            f"a tensor of layout {tensor.layout}: only dense ones are there yet; call .to_dense() on it"
        )
    name = _DTYPE_NAMES.get(tensor.dtype)
    if name is None:
        raise NotAvailableError(f"dtype {tensor.dtype}: there are {', '.join(terms.DTYPES)}")
    return name


def wants_gradient(tensor: torch.Tensor) -> bool:
    """Whether autograd must see what becomes of the tensor."""
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()


class _PendingGather:
    """An outstanding allgather: its result is made when it is known how many rows there are."""

    __slots__ = ("source",)

    def __init__(self, source: torch.Tensor) -> None:
        self.source = source

    def finish(self, owner: Session, handle: int) -> torch.Tensor:
        data, rows, _ = owner.synchronize_gather(handle)
        return received(data, sum(rows), self.source)


def received(data: bytearray, rows: int, like: torch.Tensor) -> torch.Tensor:
    """`data` as `rows` rows of a tensor that is otherwise `like` that one."""
    shape = (rows, *like.shape[1:])
    if not data:
        return torch.empty(shape, dtype=like.dtype)
    return torch.frombuffer(data, dtype=like.dtype).reshape(shape)


def _submit(
    owner: Session,
    registration: int,
    kind: int,
    tensor: torch.Tensor,
    in_place: bool,
    wake: bool,
    scales: tuple[float, float] = UNSCALED,
) -> int:
    if scales != UNSCALED:  # in place, on a copy
        copy = scaled(tensor, scales[0])
        keep = Pending(copy, copy, tensor if in_place else None, scales[1])
        return owner.submit(registration, copy.data_ptr(), copy.data_ptr(), keep, wake=wake)
    source, target = tensor, None
    if not tensor.is_contiguous():
        source, target = tensor.detach().contiguous(), tensor
    result = source
    if not in_place:
        target = None
        if kind == OpKind.BROADCAST:  # works in place, here on a copy
            result = source = source.detach().clone()
        else:
            result = torch.empty_like(source)
    address = source.data_ptr()
    if result is source and target is None:
        return owner.submit(registration, address, address, source, wake=wake)
    return owner.submit(registration, address, result.data_ptr(), Pending(source, result, target), wake=wake)


def submit_allreduce(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: Any,
    compression: Any,
    topology: str | None,
    in_place: bool,
    wake: bool,
) -> int:
    """The handle of an allreduce; arguments as `allreduce` has them."""
    owner = session_of(process_set)
    if compression is not None and isinstance(compression, Mapping):
        name = tensor_name(owner, OpKind.ALLREDUCE, name)
        compression = codecs.codec_by_name(codecs.rules_of(compression), name)
    if in_place and scales == UNSCALED:  # all in one call, for a name that is used as it was the last time
        handle: int | None = owner.shortcuts.submit(name, tensor, wake, op, scales, compression, topology)
        if handle is not None:
            return handle
    registration = owner.shortcuts.registration(name, tensor, op, scales, compression, topology)
    if registration is None:
        dtype = dtype_name(tensor)
        if dtype == "bool":
            raise InvalidArgumentError("bool cannot be reduced: use uint8, or allgather")
        full = tensor_name(owner, OpKind.ALLREDUCE, name)
        route = owner.config.topology if topology is None else topology
        codec = "none" if compression is None else codec_text(compression)
        terms = Terms(full, OpKind.ALLREDUCE, dtype, tensor.shape, op, 0, *scales, codec, route)
        registration = terms.register(owner)
        if name is not None and type(tensor) is torch.Tensor:
            owner.shortcuts.remember(registration, name, tensor, op, scales, compression, topology)
    return _submit(owner, registration, OpKind.ALLREDUCE, tensor, in_place, wake, scales)


# --- allreduce --------------------------------------------------------------------------------------------------------


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    *,
    topology: str | None = None,
) -> torch.Tensor:
    """The tensor reduced over all ranks, as a new tensor of the same shape and dtype. Blocks.

    Args:
        tensor: of one shape and dtype on all ranks.
        average: deprecated; True is `op=Average`, False is `op=Sum`.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name as in `DistributedOptimizer`; float
            tensors with Sum and Average. With Adasum "fp16" and "bf16".
        op: Average (default), Sum, Adasum, Min, Max or Product. Average of integers truncates towards zero; Adasum is
            for float tensors, and takes any number of ranks.
        prescale_factor: multiplies the tensor before it is summed; with Sum, Average and Adasum. A product of integers
            is truncated towards zero, before the sum.
        postscale_factor: multiplies the result; with Sum, Average and Adasum.
        process_set: the ranks that take part; all by default.
        topology: "auto", "direct", "ps", "ring" or "two_level", of which Adasum takes the first three; None takes
            `Config.topology`.

    Differentiable for Sum and Average. Uncompressed, the result is the sum in rank order for "direct" and "ps".
    """
    op = resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    if wants_gradient(tensor):
        from .autograd import HorovodAllreduce

        result: torch.Tensor = HorovodAllreduce.apply(
            tensor, None, name, op, *scales, process_set, compression, topology
        )
        return result
    handle = submit_allreduce(tensor, name, op, scales, process_set, compression, topology, False, False)
    result = synchronize(handle)
    return result


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    *,
    compression: Any = None,
    topology: str | None = None,
) -> int:
    """Submit an allreduce, with arguments as `allreduce` has them, and return its handle at once. `tensor` must not
    change before `synchronize(handle)` returns.
    """
    scales = (prescale_factor, postscale_factor)
    return submit_allreduce(
        tensor, name, resolve_op(op, average), scales, process_set, compression, topology, False, True
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    *,
    compression: Any = None,
    topology: str | None = None,
) -> torch.Tensor:
    """`allreduce`, with its arguments, whose result replaces the tensor's values; returns the tensor. Blocks. Not
    differentiable.
    """
    scales = (prescale_factor, postscale_factor)
    handle = submit_allreduce(
        tensor, name, resolve_op(op, average), scales, process_set, compression, topology, True, False
    )
    synchronize(handle)
    return tensor


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    *,
    compression: Any = None,
    topology: str | None = None,
) -> int:
    """Submit an in-place allreduce, with arguments as `allreduce` has them, and return its handle at once. `tensor` is
    the runtime's until `synchronize(handle)` returns.
    """
    scales = (prescale_factor, postscale_factor)
    return submit_allreduce(
        tensor, name, resolve_op(op, average), scales, process_set, compression, topology, True, True
    )


# --- allgather --------------------------------------------------------------------------------------------------------


def submit_allgather(tensor: torch.Tensor, name: str | None, process_set: Any, wake: bool) -> int:
    """The handle of an allgather."""
    owner = session_of(process_set)
    dtype = dtype_name(tensor)
    if tensor.dim() == 0:
        raise InvalidArgumentError("tried to allgather a rank-zero tensor, which has no rows: reshape it to (1,)")
    terms = Terms(tensor_name(owner, OpKind.ALLGATHER, name), OpKind.ALLGATHER, dtype, tensor.shape[1:])
    registration = terms.register(owner)
    source = tensor.detach().contiguous()
    return owner.submit(registration, source.data_ptr(), 0, _PendingGather(source), rows=tensor.shape[0], wake=wake)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> torch.Tensor:
    """The tensors of all ranks, in rank order along the first dimension, as a new tensor. Blocks. Differentiable.

    Args:
        tensor: with at least one dimension. The first may differ between ranks, and be 0; the others and the dtype must
            not.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        process_set: the ranks that take part; all by default.
    """
    if wants_gradient(tensor):
        from .autograd import HorovodAllgather

        result: torch.Tensor = HorovodAllgather.apply(tensor, name, process_set)
        return result
    result = synchronize(submit_allgather(tensor, name, process_set, wake=False))
    return result


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> int:
    """Submit an allgather, with arguments as `allgather` has them, and return its handle at once. `tensor` must not
    change before `synchronize(handle)` returns.
    """
    return submit_allgather(tensor, name, process_set, wake=True)


# --- broadcast --------------------------------------------------------------------------------------------------------


def _submit_broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: Any, in_place: bool, wake: bool
) -> int:
    owner = session_of(process_set)
    dtype = dtype_name(tensor)
    full = tensor_name(owner, OpKind.BROADCAST, name)
    registration = Terms(full, OpKind.BROADCAST, dtype, tensor.shape, Sum, process_set.root(root_rank)).register(owner)
    return _submit(owner, registration, OpKind.BROADCAST, tensor, in_place, wake)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Rank `root_rank`'s tensor, as a new tensor on every rank. Blocks. Differentiable.

    Args:
        tensor: of one shape and dtype on all ranks.
        root_rank: its number in the world, also where a process set is given.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        process_set: the ranks that take part; all by default.
    """
    if wants_gradient(tensor):
        from .autograd import HorovodBroadcast

        result: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
        return result
    handle = _submit_broadcast(tensor, root_rank, name, process_set, False, wake=False)
    result = synchronize(handle)
    return result


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> int:
    """Submit a broadcast, with arguments as `broadcast` has them, and return its handle at once. `tensor` may change:
    the result is another one.
    """
    return _submit_broadcast(tensor, root_rank, name, process_set, False, wake=True)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """`broadcast`, with its arguments, whose result replaces the tensor's values; returns the tensor. Blocks."""
    synchronize(_submit_broadcast(tensor, root_rank, name, process_set, True, wake=False))
    return tensor


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> int:
    """Submit an in-place broadcast, with arguments as `broadcast` has them, and return its handle at once. `tensor` is
    the runtime's until `synchronize(handle)` returns.
    """
    return _submit_broadcast(tensor, root_rank, name, process_set, True, wake=True)

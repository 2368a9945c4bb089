"""reducescatter: the sum over all ranks, of which each keeps its share of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from casync import codecs
from casync.codecs import codec_text
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.default import session_of
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.terms import Average, OpKind, Sum, Terms, resolve_op, tensor_name

from .compression import Compression
from .ops import dtype_name, wants_gradient
from .scaling import scaled
from .waiting import Pending, synchronize

__all__ = ["reducescatter", "reducescatter_async"]


def check(tensor: torch.Tensor, op: int) -> str:
    """The dtype of a tensor that can be reduced and scattered. Raises for one that cannot."""
    dtype = dtype_name(tensor)
    if dtype == "bool":
        raise InvalidArgumentError("bool cannot be reduced: use uint8")
    if tensor.dim() == 0:
        raise InvalidArgumentError("tried to reducescatter a rank-zero tensor, which has no rows: reshape it to (1,)")
    if resolve_op(op, None) not in (Average, Sum):
        raise NotAvailableError("reducescatter takes op Sum or Average; for the others allreduce, and take your rows")
    return dtype


def gradient_factor(op: int, scales: tuple[float, float], process_set: Any) -> float:
    """What the gradients of the results, gathered, are multiplied by: Horovod's convention, which fits a loss that is
    the mean over ranks.
    """
    return scales[0] * scales[1] * (session_of(process_set).size if op == Sum else 1)


def submit_reducescatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: Any,
    compression: Any = None,
    *,
    wake: bool = True,
) -> int:
    """The handle of a reducescatter; arguments as `reducescatter` has them."""
    owner = session_of(process_set)
    dtype = check(tensor, op)
    name = tensor_name(owner, OpKind.REDUCESCATTER, name)
    if isinstance(compression, Mapping):
        compression = codecs.codec_by_name(codecs.rules_of(compression), name)
    codec = "none" if compression is None else codec_text(compression)
    registration = Terms(name, OpKind.REDUCESCATTER, dtype, tensor.shape, op, 0, *scales, codec).register(owner)
    source = tensor.detach().contiguous() if scales[0] == 1.0 else scaled(tensor, scales[0])
    rows, longer = divmod(tensor.shape[0], owner.size)
    result = source.new_empty((rows + (owner.rank < longer), *tensor.shape[1:]))
    keep = Pending(source, result, None, scales[1])
    return owner.submit(registration, source.data_ptr(), result.data_ptr(), keep, wake=wake)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the tensor reduced over all ranks, as a new tensor. Blocks. Differentiable.

    The first dimension is dealt out in rank order; if it is no multiple of the number of ranks, the first ones have a
    row more.

    Args:
        tensor: of one shape and dtype on all ranks, with at least one dimension.
        name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
        compression: a codec that reduces in one pass (`Compression.onebit()`, "fp16"), or codecs by name as in
            `DistributedOptimizer`; for float tensors. What it loses is kept under the name, and sent the next time.
        op: Average or Sum. Average of integers truncates towards zero.
        process_set: the ranks that take part; all by default.
        prescale_factor: multiplies the tensor before it is summed.
        postscale_factor: multiplies the result.
    """
    scales = (prescale_factor, postscale_factor)
    if wants_gradient(tensor):
        from .autograd import HorovodReducescatter

        result: torch.Tensor = HorovodReducescatter.apply(tensor, name, op, process_set, *scales, compression)
        return result
    result = synchronize(submit_reducescatter(tensor, name, op, scales, process_set, compression, wake=False))
    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: Any = None,
) -> int:
    """Submit a reducescatter, with arguments as `reducescatter` has them, and return its handle at once. `tensor` must
    not change before `synchronize(handle)` returns.
    """
    return submit_reducescatter(tensor, name, op, (prescale_factor, postscale_factor), process_set, compression)

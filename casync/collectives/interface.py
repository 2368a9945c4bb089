"""The operations that a training script calls: Horovod's, for the tensors of one framework.

Signatures and defaults are Horovod's; what stands behind a `*`, and `compression=` of asynchronous operations, are
ours. An operation is submitted by pointer and never copied, unless its tensor is not contiguous. Any thread may call;
two threads must not use one name at a time.

Tensors are dense and in this host's memory, of float32, float16, bfloat16, float64, int8, int16, int32, int64, uint8 or
uint16; allgather, alltoall and broadcast take bool too. Anything else raises `NotAvailableError`. A wrong argument
raises `InvalidArgumentError` (a ValueError) at the call; ranks that disagree get a `MismatchError` where they wait, and
the session stays usable.
"""

from __future__ import annotations

from typing import Any

from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives import allgather, allreduce, alltoall, broadcast, reducescatter
from casync.collectives.grouped import GroupedCollectives
from casync.collectives.waiting import synchronize
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet
from casync.tensors.adaptor import T
from casync.tensors.signature import Average, resolve_op

__all__ = ["Collectives"]


class Collectives(GroupedCollectives[T]):
    """The operations of one adaptor, which has them under their names. Those that block are differentiable where the
    framework differentiates.
    """

    # --- allreduce ----------------------------------------------------------------------------------------------------

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: CompressionLike = Compression.none,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        topology: str | None = None,
    ) -> T:
        """The tensor reduced over all ranks, as a new tensor of the same shape and dtype. Blocks.

        Args:
            tensor: of one shape and dtype on all ranks.
            average: deprecated; True is `op=Average`, False is `op=Sum`.
            name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
            compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name as in `DistributedOptimizer`;
                float tensors with Sum and Average. With Adasum "fp16" and "bf16".
            op: Average (default), Sum, Adasum, Min, Max or Product. Average of integers truncates towards zero; Adasum
                is for float tensors, and takes any number of ranks.
            prescale_factor: multiplies the tensor before it is summed; with Sum, Average and Adasum. A product of
                integers is truncated towards zero, before the sum.
            postscale_factor: multiplies the result; with Sum, Average and Adasum.
            process_set: the ranks that take part; all by default.
            topology: "auto", "direct", "ps", "ring" or "two_level", of which Adasum takes the first three; None takes
                `Config.topology`.

        Differentiable for Sum and Average. Uncompressed, the result is the sum in rank order for "direct" and "ps".
        """
        op = resolve_op(op, average)
        scales = (prescale_factor, postscale_factor)
        if instead := self._instead(tensor):
            return instead.allreduce(tensor, name, op, scales, process_set, compression, topology)
        handle = allreduce.submit(
            self._tensors, tensor, name, op, scales, process_set, compression, topology, in_place=False, wake=False
        )
        result: T = synchronize(handle)
        return result

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionLike = None,
        topology: str | None = None,
        priority: int = 0,
    ) -> int:
        """Submit an allreduce, with arguments as `allreduce` has them, and return its handle at once. `tensor` must not
        change before `synchronize(handle)` returns.

        `priority`: of tensors that wait for each other, that with the highest goes first; the same on all ranks.
        """
        scales = (prescale_factor, postscale_factor)
        return allreduce.submit(
            self._tensors, tensor, name, resolve_op(op, average), scales, process_set, compression, topology,
            in_place=False, priority=priority,
        )  # fmt: skip

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionLike = None,
        topology: str | None = None,
    ) -> T:
        """`allreduce`, with its arguments, whose result replaces the tensor's values; returns the tensor. Blocks. Not
        differentiable.
        """
        scales = (prescale_factor, postscale_factor)
        handle = allreduce.submit(
            self._tensors, tensor, name, resolve_op(op, average), scales, process_set, compression, topology,
            in_place=True, wake=False,
        )  # fmt: skip
        synchronize(handle)
        return tensor

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionLike = None,
        topology: str | None = None,
        priority: int = 0,
    ) -> int:
        """Submit an in-place allreduce, with arguments as `allreduce_async` has them, and return its handle at once.
        `tensor` is the runtime's until `synchronize(handle)` returns.
        """
        scales = (prescale_factor, postscale_factor)
        return allreduce.submit(
            self._tensors, tensor, name, resolve_op(op, average), scales, process_set, compression, topology,
            in_place=True, priority=priority,
        )  # fmt: skip

    # --- allgather ----------------------------------------------------------------------------------------------------

    def allgather(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """The tensors of all ranks, in rank order along the first dimension, as a new tensor. Blocks. Differentiable.

        Args:
            tensor: with at least one dimension. The first may differ between ranks, and be 0; the others and the dtype
                must not.
            name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
            process_set: the ranks that take part; all by default.
        """
        if instead := self._instead(tensor):
            return instead.allgather(tensor, name, process_set)
        result: T = synchronize(allgather.submit(self._tensors, tensor, name, process_set, wake=False))
        return result

    def allgather_async(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
        """Submit an allgather, with arguments as `allgather` has them, and return its handle at once. `tensor` must not
        change before `synchronize(handle)` returns.
        """
        return allgather.submit(self._tensors, tensor, name, process_set)

    # --- broadcast ----------------------------------------------------------------------------------------------------

    def broadcast(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Rank `root_rank`'s tensor, as a new tensor on every rank. Blocks. Differentiable.

        Args:
            tensor: of one shape and dtype on all ranks.
            root_rank: its number in the world, also where a process set is given.
            name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
            process_set: the ranks that take part; all by default.
        """
        if instead := self._instead(tensor):
            return instead.broadcast(tensor, root_rank, name, process_set)
        handle = broadcast.submit(self._tensors, tensor, root_rank, name, process_set, in_place=False, wake=False)
        result: T = synchronize(handle)
        return result

    def broadcast_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Submit a broadcast, with arguments as `broadcast` has them, and return its handle at once. `tensor` may
        change: the result is another one.
        """
        return broadcast.submit(self._tensors, tensor, root_rank, name, process_set, in_place=False)

    def broadcast_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """`broadcast`, with its arguments, whose result replaces the tensor's values; returns the tensor. Blocks."""
        synchronize(broadcast.submit(self._tensors, tensor, root_rank, name, process_set, in_place=True, wake=False))
        return tensor

    def broadcast_async_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Submit an in-place broadcast, with arguments as `broadcast` has them, and return its handle at once. `tensor`
        is the runtime's until `synchronize(handle)` returns.
        """
        return broadcast.submit(self._tensors, tensor, root_rank, name, process_set, in_place=True)

    # --- alltoall -----------------------------------------------------------------------------------------------------

    def alltoall(
        self, tensor: T, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Any:
        """The rows that all ranks have for this one, in rank order, as a new tensor. Blocks. Differentiable.

        Args:
            tensor: its rows are dealt out to the ranks in their order; dtype and all dimensions but the first must be
                alike on all ranks.
            splits: how many rows go to each rank, 0 included: a tensor of int32, or a list. Rows beyond them go
                nowhere. None: the same number to each.
            name: under which the ranks meet; None numbers the calls, so all ranks must make them in one order.
            process_set: the ranks that take part; all by default.

        Returns the tensor, and, if `splits` is given, how many of its rows came from each rank, as a tensor of int32.
        """
        if instead := self._instead(tensor):
            output, counts = instead.alltoall(tensor, splits, name, process_set)
        else:
            handle = alltoall.submit(self._tensors, tensor, splits, name, process_set, wake=False)
            output, counts = synchronize(handle)
        return output if splits is None else (output, counts)

    def alltoall_async(
        self, tensor: T, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Submit an alltoall, with arguments as `alltoall` has them, and return its handle at once, whose `synchronize`
        gives output and received splits, also without `splits`. `tensor` must not change before it returns.
        """
        return alltoall.submit(self._tensors, tensor, splits, name, process_set)

    # --- reducescatter ------------------------------------------------------------------------------------------------

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        compression: CompressionLike = Compression.none,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """This rank's rows of the tensor reduced over all ranks, as a new tensor. Blocks. Differentiable.

        The first dimension is dealt out in rank order; if it is no multiple of the number of ranks, the first ones have
        a row more.

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
        if instead := self._instead(tensor):
            return instead.reducescatter(tensor, name, op, scales, process_set, compression)
        handle = reducescatter.submit(self._tensors, tensor, name, op, scales, process_set, compression, wake=False)
        result: T = synchronize(handle)
        return result

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        compression: CompressionLike = None,
    ) -> int:
        """Submit a reducescatter, with arguments as `reducescatter` has them, and return its handle at once. `tensor`
        must not change before `synchronize(handle)` returns.
        """
        scales = (prescale_factor, postscale_factor)
        return reducescatter.submit(self._tensors, tensor, name, op, scales, process_set, compression)

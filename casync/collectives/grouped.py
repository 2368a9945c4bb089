"""Operations on several tensors that are submitted together: one handle, one list of results in the order given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Generic

from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives import allgather, allreduce, reducescatter
from casync.collectives.autograd import Autograd, Blocking
from casync.collectives.waiting import PendingGroup, synchronize, synchronize_each
from casync.errors import InvalidArgumentError
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import Average, OpKind, resolve_op

__all__ = ["GroupedCollectives", "check_group"]


class GroupedCollectives(Generic[T]):
    """The part of `Collectives` that takes several tensors."""

    def __init__(
        self, tensors: Tensors[T], autograd: Autograd[T] | None = None, graph: Blocking[T] | None = None
    ) -> None:
        """`graph`: what makes the blocking operations parts of a graph, of tensors that have no values yet; None for
        tensors that have some.
        """
        self._tensors = tensors
        self._autograd = autograd
        self._graph = graph

    def _instead(self, *tensors: Any) -> Blocking[T] | None:
        """Return what does the blocking operations on these, if it is not a submit here and a wait; else None."""
        check_group(tensors)
        if self._autograd is not None and any(map(self._autograd.wants, tensors)):
            return self._autograd
        return self._graph

    def _submit(
        self,
        tensors: Sequence[T],
        kind: int,
        name: str | None,
        process_set: ProcessSet,
        submit: Callable[[Any, str, bool], int],
    ) -> int:
        """Submit all, with `submit`, under names of the group; the last one wakes the runtime."""
        owner = session_of(process_set)
        check_group(tensors)
        base = owner.tensor_name(kind, name)
        for i, tensor in enumerate(tensors):  # a bad one is found before the first is submitted
            with about(f"{base}.{i}"):
                self._tensors.dtype(self._tensors.admit(tensor))
        handles: list[int] = []
        try:
            for i, tensor in enumerate(tensors):
                handles.append(submit(tensor, f"{base}.{i}", i == len(tensors) - 1))
        except Exception:
            with contextlib.suppress(Exception):  # the first failure is the one that tells
                synchronize_each(handles)
            raise
        owner.keep(handles[-1], PendingGroup(owner, handles))
        return handles[-1]

    def _submit_allreduce(
        self,
        tensors: Sequence[T],
        name: str | None,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        compression: CompressionLike = None,
        *,
        in_place: bool = False,
    ) -> int:
        def submit(tensor: Any, each: str, wake: bool) -> int:
            return allreduce.submit(
                self._tensors, tensor, each, op, scales, process_set, compression, None, in_place=in_place, wake=wake
            )

        return self._submit(tensors, OpKind.ALLREDUCE, name, process_set, submit)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: CompressionLike = Compression.none,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """`allreduce` of several tensors, of any shapes and dtypes, together, with its other arguments; new tensors in
        the order given. Blocks. Differentiable for Sum and Average.
        """
        op = resolve_op(op, average)
        scales = (prescale_factor, postscale_factor)
        check_group(tensors)
        if instead := self._instead(*tensors):
            return instead.grouped_allreduce(tensors, name, op, scales, process_set, compression)
        result: list[T] = synchronize(self._submit_allreduce(tensors, name, op, scales, process_set, compression))
        return result

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionLike = None,
    ) -> int:
        """Submit a group of tensors, with arguments as `allreduce` has them, and return the handle of the group at
        once. The tensors must not change before `synchronize(handle)` returns.
        """
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        return self._submit_allreduce(tensors, name, op, scales, process_set, compression)

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """`grouped_allreduce`, with its arguments, in place; returns the tensors. Blocks. Not differentiable."""
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        synchronize(self._submit_allreduce(tensors, name, op, scales, process_set, in_place=True))
        return list(tensors)

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: CompressionLike = None,
    ) -> int:
        """Submit a group of tensors in place, with arguments as `allreduce` has them, and return the handle of the
        group at once. The tensors are the runtime's until `synchronize(handle)` returns.
        """
        scales = (prescale_factor, postscale_factor)
        op = resolve_op(op, average)
        return self._submit_allreduce(tensors, name, op, scales, process_set, compression, in_place=True)

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """`allgather` of several tensors together, with its other arguments; new tensors in the order given. Blocks.
        Differentiable.
        """
        check_group(tensors)
        if instead := self._instead(*tensors):
            return instead.grouped_allgather(tensors, name, process_set)
        result: list[T] = synchronize(self.grouped_allgather_async(tensors, name, process_set))
        return result

    def grouped_allgather_async(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Submit a group of tensors, with arguments as `allgather` has them, and return the handle of the group at
        once. The tensors must not change before `synchronize(handle)` returns.
        """

        def submit(tensor: Any, each: str, wake: bool) -> int:
            return allgather.submit(self._tensors, tensor, each, process_set, wake=wake)

        return self._submit(tensors, OpKind.ALLGATHER, name, process_set, submit)

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        compression: CompressionLike = Compression.none,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """`reducescatter` of several tensors, of any shapes and dtypes, together, with its other arguments; new tensors
        in the order given. Blocks. Differentiable.
        """
        scales = (prescale_factor, postscale_factor)
        check_group(tensors)
        if instead := self._instead(*tensors):
            return instead.grouped_reducescatter(tensors, name, op, scales, process_set, compression)
        result: list[T] = synchronize(
            self.grouped_reducescatter_async(tensors, name, op, process_set, *scales, compression=compression)
        )
        return result

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        compression: CompressionLike = None,
    ) -> int:
        """Submit a group of tensors, with arguments as `reducescatter` has them, and return the handle of the group at
        once. The tensors must not change before `synchronize(handle)` returns.
        """
        scales = (prescale_factor, postscale_factor)
        check_group(tensors)
        for i, tensor in enumerate(tensors):
            with about(None if name is None else f"{name}.{i}"):
                reducescatter.check(self._tensors, tensor, op)

        def submit(tensor: Any, each: str, wake: bool) -> int:
            return reducescatter.submit(self._tensors, tensor, each, op, scales, process_set, compression, wake=wake)

        return self._submit(tensors, OpKind.REDUCESCATTER, name, process_set, submit)


def check_group(tensors: Sequence[Any]) -> None:
    """Raise `InvalidArgumentError` for a group of nothing, and for what is no group."""
    try:
        count = len(tensors)
    except TypeError:
        raise InvalidArgumentError(f"tensors={tensors!r}: it must be a list of tensors") from None
    if count == 0:
        raise InvalidArgumentError("a group of no tensors")

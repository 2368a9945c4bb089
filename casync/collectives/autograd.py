"""The blocking operations in another form than a submit and a wait: differentiable, or as parts of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from casync.codecs.specs import CompressionLike
from casync.session.process_sets import ProcessSet
from casync.tensors.adaptor import T

__all__ = ["Autograd", "Blocking"]


class Blocking(Protocol[T]):
    """Arguments are those of `Collectives`, with `op` resolved and both factors in `scales`."""

    def allreduce(
        self, tensor: T, name: str | None, op: int, scales: tuple[float, float], process_set: ProcessSet,
        compression: CompressionLike, topology: str | None,
    ) -> T: ...  # fmt: skip

    def allgather(self, tensor: T, name: str | None, process_set: ProcessSet) -> T: ...

    def broadcast(self, tensor: T, root_rank: int, name: str | None, process_set: ProcessSet) -> T: ...

    def alltoall(self, tensor: T, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[T, T]: ...

    def reducescatter(
        self,
        tensor: T,
        name: str | None,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        compression: CompressionLike,
    ) -> T: ...

    def grouped_allreduce(
        self, tensors: Sequence[T], name: str | None, op: int, scales: tuple[float, float], process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[T]: ...  # fmt: skip

    def grouped_allgather(self, tensors: Sequence[T], name: str | None, process_set: ProcessSet) -> list[T]: ...

    def grouped_reducescatter(
        self, tensors: Sequence[T], name: str | None, op: int, scales: tuple[float, float], process_set: ProcessSet,
        compression: CompressionLike,
    ) -> list[T]: ...  # fmt: skip


class Autograd(Blocking[T], Protocol[T]):
    """The operations that an adaptor gives `Collectives` where its framework computes gradients by itself."""

    def wants(self, tensor: Any) -> bool:
        """Whether the framework must see what becomes of `tensor`, which may be no tensor at all."""

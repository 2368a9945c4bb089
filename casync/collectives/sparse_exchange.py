"""Sparse tensors, as embeddings have for gradients: the ranks exchange the elements that there are.

A sparse tensor is two here: the rows of `values`, and the rows of `indices` that say where each belongs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic

from casync.collectives import allgather
from casync.collectives.waiting import synchronize, synchronize_each
from casync.errors import NotAvailableError
from casync.session.default import session_of
from casync.session.process_sets import ProcessSet
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import Average, Sum, resolve_op

__all__ = ["SparsePending", "submit", "wire_dtype"]

_CASTS = {"fp16": "float16", "bf16": "bfloat16", "always(fp16)": "float16", "always(bf16)": "bfloat16"}


class SparsePending(Generic[T]):
    """An outstanding reduction of a sparse tensor."""

    def __init__(
        self, tensors: Tensors[T], dtype: str, submit_indices: Callable[[], int], handles: list[int], divisor: int
    ) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._submit_indices = submit_indices
        self._values, self._indices = handles
        self._divisor = divisor
        self._rows: T | None = None  # of the indices, once they are there
        self._failure: Exception | None = None
        self._has_ended = False

    def wait_for_indices(self) -> Exception | None:
        """Wait for the indices; return the error that ended them, or None. The values are still outstanding."""
        if self._rows is None and self._failure is None:
            try:
                self._rows = synchronize(self._indices)
            except Exception as error:
                self._failure = error
        return self._failure

    def again(self) -> None:
        """Submit the indices once more, which a rank with a dense tensor has ended, and which now has a sparse one."""
        self._failure, self._indices = None, self._submit_indices()

    def finish(self) -> tuple[T, T]:
        """Wait for it; indices and values of all ranks, in rank order. An element that several ranks have is there
        several times. Raises what ended it, once both parts have ended.
        """
        if self._has_ended and self._failure is not None:
            raise self._failure
        failure = self.wait_for_indices()
        try:
            values = synchronize(self._values)
        except Exception as error:
            failure = failure or error
        self._has_ended = True
        if failure is not None:
            self._failure = failure
            raise failure
        assert self._rows is not None
        values = self._tensors.cast(values, self._dtype)
        if self._divisor > 1:
            values = self._tensors.scaled(values, 1.0 / self._divisor)
        return self._rows, values


def submit(
    tensors: Tensors[T],
    indices: T,
    values: T,
    name: str,
    op: int,
    process_set: ProcessSet,
    wire: str | None = None,
    meets: str | None = None,
) -> SparsePending[T]:
    """Submit the reduction of a sparse tensor: two allgathers, `<name>.indices` and `<name>.values`.

    Args:
        tensors: what they are.
        indices: a row for each of the values.
        values: of a floating dtype with Average.
        name: under which the ranks meet.
        op: Sum or Average.
        process_set: the ranks that take part.
        wire: the dtype in which values travel; None: their own.
        meets: the session's name of the operation that a rank with a dense tensor has. The indices go under it, so that
            ranks that disagree hear of it at once.
    """
    owner = session_of(process_set)
    if resolve_op(op, None) not in (Average, Sum):
        raise NotAvailableError(f"the sparse allreduce of {name} takes op Sum or Average; use a dense one")
    with about(name):
        dtype = tensors.dtype(values)
    given = values if wire is None else tensors.cast(values, wire)

    def submit_indices() -> int:
        return allgather.submit(tensors, indices, f"{name}.indices", process_set, meets=meets)

    handles: list[int] = []
    try:
        handles.append(allgather.submit(tensors, given, f"{name}.values", process_set, wake=False))
        handles.append(submit_indices())
    except Exception:
        with contextlib.suppress(Exception):  # the first failure is the one that tells
            synchronize_each(handles)
        raise
    return SparsePending(tensors, dtype, submit_indices, handles, owner.size if op == Average else 1)


def wire_dtype(tensor: str, codec: str) -> str | None:
    """Return the dtype in which the values of a sparse gradient travel if its rule names `codec`; None: their own.
    Raises `NotAvailableError` for a codec that compresses dense ones alone.
    """
    if codec == "none" or codec in _CASTS or codec.startswith("auto"):
        return _CASTS.get(codec)
    raise NotAvailableError(
        f"tensor {tensor} is a sparse gradient, which {codec} cannot compress: pass sparse_as_dense=True, or "
        "compression={...} with the codec none, fp16 or bf16 for its name"
    )

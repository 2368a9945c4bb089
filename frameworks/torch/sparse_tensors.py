"""Sparse tensors of torch, as `Embedding(sparse=True)` has for gradients."""

from __future__ import annotations

import torch
from casync.collectives import sparse_exchange as sparse
from casync.collectives.sparse_exchange import SparsePending
from casync.errors import InvalidArgumentError
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet

from .tensors import TENSORS

__all__ = ["SparseHandle", "sparse_allreduce_async"]


class SparseHandle:
    """An outstanding `sparse_allreduce_async`; called, it waits and returns the reduced tensor, the same each time."""

    def __init__(self, pending: SparsePending[torch.Tensor], shape: torch.Size) -> None:
        self._pending = pending
        self._shape = shape
        self._result: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self._result is None:
            self._result = sparse_of(*self._pending.finish(), self._shape)
        return self._result


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> SparseHandle:
    """Submit the reduction of a sparse tensor over all ranks and return a callable that waits for it. The tensor must
    not change before it returns.

    It is two allgathers, `<name>.indices` and `<name>.values`: ranks may have different elements, and none; an element
    that several have is in the result several times, and `coalesce()` adds them up.

    Args:
        tensor: a sparse COO tensor, of one shape and dtype on all ranks.
        name: under which the ranks meet.
        op: Sum or Average.
        process_set: the ranks that take part; all by default.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError(f"sparse_allreduce_async of {name} takes a sparse COO tensor; allreduce a dense one")
    return SparseHandle(submit(tensor, name, op, process_set, None), tensor.shape)


def submit(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet, wire: str | None, *, meets: str | None = None
) -> SparsePending[torch.Tensor]:
    """Submit as `sparse_allreduce_async` does. The values travel as `wire`, or as they are. `meets`: the session's name
    of what a rank with a dense tensor submits.
    """
    tensor = tensor.detach()
    indices = tensor._indices().t().contiguous()
    return sparse.submit(TENSORS, indices, tensor._values(), name, op, process_set, wire, meets)


def sparse_of(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The inverse: a sparse COO tensor, from a row of `indices` for each of `values`."""
    return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=True)


def zeros_of(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A gradient of zeros; sparse if `sparse_dim` is not 0."""
    if sparse_dim == 0:
        return torch.zeros_like(parameter, requires_grad=False)
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.new_empty((0, *parameter.shape[sparse_dim:]), requires_grad=False)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)

"""Sparse tensors, as embeddings have for gradients: the ranks exchange the values that there are."""

from __future__ import annotations

from typing import Any

import torch
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.default import session_of
from casync.errors import CasyncError, InvalidArgumentError, NotAvailableError
from casync.terms import Average, Sum, resolve_op

from .ops import submit_allgather
from .waiting import synchronize

__all__ = ["SparseHandle", "sparse_allreduce_async"]

_CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class SparseHandle:
    """An outstanding `sparse_allreduce_async`; called, it waits and returns the reduced tensor, the same each time."""

    def __init__(self, tensor: torch.Tensor, indices: int, values: int, divisor: int) -> None:
        self._tensor = tensor
        self._handles = (indices, values)
        self._divisor = divisor
        self._result: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self._result is None:
            indices, values = (synchronize(handle) for handle in self._handles)
            values = values.to(self._tensor.dtype)
            if self._divisor > 1:
                values = values / self._divisor
            self._result = torch.sparse_coo_tensor(indices.t(), values, self._tensor.shape, check_invariants=True)
        return self._result


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: Any = global_process_set
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
    return _submit(tensor, name, op, process_set, None)


def _submit(tensor: torch.Tensor, name: str, op: int, process_set: Any, wire: torch.dtype | None) -> SparseHandle:
    """The values travel as `wire`; None: as they are."""
    owner = session_of(process_set)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError(f"sparse_allreduce_async of {name} takes a sparse COO tensor; allreduce a dense one")
    if resolve_op(op, None) not in (Average, Sum):
        raise NotAvailableError(f"sparse_allreduce_async of {name} takes op Sum or Average; to_dense() for the others")
    divisor = owner.size if op == Average else 1
    tensor = tensor.detach()
    given = tensor._values() if wire is None else tensor._values().to(wire)
    indices = submit_allgather(tensor._indices().t().contiguous(), f"{name}.indices", process_set, wake=False)
    values = submit_allgather(given, f"{name}.values", process_set, wake=True)
    return SparseHandle(tensor, indices, values, divisor)


# --- gradients under the optimizer ------------------------------------------------------------------------------------


def submit_gradient(gradient: torch.Tensor, tensor: str, codec: str, op: int, process_set: Any) -> SparseHandle:
    """`sparse_allreduce_async` of a gradient whose rule names `codec`."""
    if not (codec == "none" or codec in _CASTS or codec.startswith("auto")):
        raise NotAvailableError(
            f"tensor {tensor} is a sparse gradient, which {codec} cannot compress: pass sparse_as_dense=True, or "
            "compression={...} with the codec none, fp16 or bf16 for its name"
        )
    return _submit(gradient, tensor, op, process_set, _CASTS.get(codec))


def zeros_of(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A gradient of zeros; sparse if `sparse_dim` is not 0."""
    if sparse_dim == 0:
        return torch.zeros_like(parameter, requires_grad=False)
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64)
    values = torch.empty((0, *parameter.shape[sparse_dim:]), dtype=parameter.dtype)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)


def take_all(outstanding: dict[torch.nn.Parameter, SparseHandle]) -> None:
    """Wait for the gradients of all these parameters, then raise the first failure."""
    failure: CasyncError | None = None
    for parameter, handle in outstanding.items():
        try:
            parameter.grad = handle()
        except CasyncError as error:
            failure = failure or error
    if failure is not None:
        raise failure

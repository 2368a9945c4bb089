"""Parameters and an optimizer's state, given to every rank. All are collective and block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from casync.checkpoint.optimizer import STATE_KEY
from casync.collectives.objects import broadcast_object
from casync.collectives.waiting import synchronize_each
from casync.errors import InvalidArgumentError
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet

from .in_place import loading_in_place
from .likeness import agree, difference, outline
from .ops import broadcast_async_
from .tensors import TENSORS
from .wrapped_optimizer import _DistributedOptimizer

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    *,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank of the set the values that `root_rank` has, in place. Blocks.

    Args:
        params: `model.state_dict()` or `model.named_parameters()`, of the same names, shapes and dtypes on all ranks.
            Entries of a state_dict that are not tensors are left alone. Of any dtype: complex numbers and float8 too.
        root_rank: its number in the world, also where a process set is given.
        process_set: the ranks that take part; all by default.
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str):
        named = list(params)
        if not all(isinstance(item, tuple) and len(item) == 2 for item in named):
            raise InvalidArgumentError(
                "invalid params: give a state_dict, or pairs of name and tensor (not model.parameters())"
            )
    else:
        raise InvalidArgumentError(f"invalid params of type: {type(params)}")
    tensors = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    _broadcast_all(tensors, root_rank, process_set)


def _broadcast_all(named: Iterable[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    synchronize_each(broadcast_async_(_as_known(tensor), root_rank, name, process_set) for name, tensor in named)


def _as_known(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory in a dtype that can be sent, if the tensor's cannot: only its bits matter."""
    if tensor.layout is not torch.strided or tensor.is_quantized or TENSORS.has_dtype(tensor):
        return tensor
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach().view(_BITS[tensor.itemsize])


class _Slot:
    """Stands for the i-th tensor of a structure that is sent without its tensors."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index = index
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with each tensor replaced by a slot, and the tensors appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.cpu())  # where the others have theirs; loading a state puts it where it belongs
        return _Slot(len(tensors) - 1, value)
    if isinstance(value, dict):
        return {key: _take_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, tensors) for item in value)
    return value


def _put_in(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse: each slot replaced by an empty tensor, which is also appended to `tensors`."""
    if isinstance(value, _Slot):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _put_in(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_in(item, tensors) for item in value)
    return value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, *, process_set: ProcessSet = global_process_set
) -> None:
    """Give the optimizer of every rank of the set the state and hyperparameters of `root_rank`'s, which stays as it
    is.

    Codec state (residuals) is each rank's own and is not copied: see `casync.checkpoint.optimizer`. The codecs that a
    monitor of the root's has fallen back to are. As after Horovod's,
    parameters of an optimizer without state have a gradient: zeros, where there was none. Blocks. Raises ValueError for
    LBFGS, whose state is not per parameter, and `MismatchError` on every rank if one has other parameters, or an
    optimizer with other settings, than the root; no rank's state changes then.

    Args:
        optimizer: wrapped by `DistributedOptimizer` or not, over the same parameters on all ranks.
        root_rank: its number in the world, also where a process set is given.
        model: accepted and not needed.
        process_set: the ranks that take part; all by default.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("cannot broadcast torch.optim.LBFGS state")
    if not optimizer.state:
        _fill_gradients(optimizer)
    is_root = default.session().rank == root_rank
    tensors: list[torch.Tensor] = []
    structure: Any = None
    if is_root:
        state = {key: value for key, value in optimizer.state_dict().items() if key != STATE_KEY}
        structure = outline(optimizer), _take_out(state, tensors), _fallbacks_of(optimizer)
    theirs, structure, (fallbacks, unsent) = broadcast_object(structure, root_rank, "optimizer_state", process_set)
    agree(process_set, difference(optimizer, theirs, root_rank))
    if not is_root:
        structure = _put_in(structure, tensors)
    _broadcast_all([(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)], root_rank, process_set)
    if not is_root:
        _load_shared(optimizer, structure)
    if isinstance(optimizer, _DistributedOptimizer):
        optimizer._gradients.fall_back(fallbacks, unsent)


def _fallbacks_of(optimizer: torch.optim.Optimizer) -> tuple[dict[str, str], list[str]]:
    if not isinstance(optimizer, _DistributedOptimizer):
        return {}, []
    return optimizer._gradients.fallbacks(), optimizer._gradients.unsent()


def _fill_gradients(optimizer: torch.optim.Optimizer) -> None:
    sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                zeros = torch.zeros_like(parameter, requires_grad=False)
                parameter.grad = zeros.to_sparse() if sparse else zeros


def _load_shared(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what ranks share, in place, as the root keeps its own. Of a DistributedOptimizer the codec state stays as it
    is, so its class's own loader is used.
    """
    if isinstance(optimizer, _DistributedOptimizer):
        optimizer.load_shared_state_dict(state)
        return
    with loading_in_place(optimizer):
        optimizer.load_state_dict(state)

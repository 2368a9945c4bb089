"""Among which ranks a DistributedDataParallel reduces.

DDP does not tell its hook which DDP calls, and a bucket does not say it either. So each one that a hook is registered
with is noted here.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
import torch.distributed as dist
from casync.errors import InvalidArgumentError
from casync.session import default
from casync.session.process_sets import ProcessSet
from casync.session.session import Session
from torch.nn.parallel import DistributedDataParallel

__all__ = ["caller_of", "divisor_is_of_active", "made", "may_discard", "members_of"]

_hooked: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
_register = DistributedDataParallel.register_comm_hook


@functools.wraps(_register)
def _register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
    _register(self, state, hook)
    _hooked.add(self)


DistributedDataParallel.register_comm_hook = _register_comm_hook  # type: ignore[method-assign]


_made: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
_make = DistributedDataParallel.__init__


@functools.wraps(_make)
def _made_and_noted(self: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
    _make(self, *arguments, **options)
    _made.add(self)


DistributedDataParallel.__init__ = _made_and_noted  # type: ignore[method-assign]


def made() -> list[DistributedDataParallel]:
    """Every DDP that there is."""
    return list(_made)


def caller_of(state: object, parameter: torch.Tensor) -> DistributedDataParallel | None:
    """The DDP that calls a hook with `state` and a bucket with `parameter`; None if no DDP has registered it.

    A program may hand over the state in a way of its own, by a hook that wraps ours. Then the parameter tells. Raises
    `InvalidArgumentError` if several DDPs may be meant, and their ranks are not the same.
    """
    holders = [ddp for ddp in list(_hooked) if any(held is state for _, held in ddp._comm_hooks)]
    found = holders if len(holders) == 1 else [ddp for ddp in holders or list(_hooked) if _has(ddp, parameter)]
    groups = {id(ddp.process_group) for ddp in found}
    if len(groups) > 1:
        raise InvalidArgumentError(
            f"{len(found)} DistributedDataParallel with other process groups have the parameter of shape "
            f"{tuple(parameter.shape)}, and it is not known which of them calls the hook: give each a ddp_state of its "
            "own, as the first argument of register_comm_hook()"
        )
    return found[0] if found else None


def _has(ddp: DistributedDataParallel, parameter: torch.Tensor) -> bool:
    return any(one is parameter for one in ddp._module_parameters)


def divisor_is_of_active(ddp: DistributedDataParallel | None) -> bool:
    """Whether gradients are divided by the number of ranks that still have data: in
    `ddp.join(divide_by_initial_world_size=False)`.
    """
    if ddp is None:
        return False
    config = ddp._join_config
    by_initial = getattr(ddp, "_divide_by_initial_world_size", True)
    return bool(config.enable and config.is_first_joinable and not by_initial)


def may_discard(ddp: DistributedDataParallel | None) -> bool:
    """Whether DDP leaves the gradient of a parameter alone that no rank has used."""
    return ddp is not None and bool(ddp.find_unused_parameters or ddp.static_graph)


def members_of(world: Session, ddp: DistributedDataParallel | None) -> ProcessSet:
    """The ranks of `ddp`'s process group, all of torch.distributed's for None. Collective over them the first time.

    Raises `InvalidArgumentError` if some of them are not in `world`, CaSync's default session.
    """
    places = _places(world)
    group: Any = None if ddp is None else ddp.process_group
    ranks = _ranks_of(group)
    if missing := [rank for rank in ranks if rank not in places]:
        raise InvalidArgumentError(
            f"DistributedDataParallel reduces over ranks {ranks} of torch.distributed, and rank {missing[0]} of them "
            f"is not in CaSync's world, which has {sorted(places)}: give hvd.init(comm=...) all ranks of its process "
            "group"
        )
    return default.process_sets().among([places[rank] for rank in ranks])


def _ranks_of(group: Any) -> list[int]:
    if group is None:
        return list(range(dist.get_world_size()))
    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, ValueError):  # a group that torch.distributed did not make
        if group.size() == dist.get_world_size():
            return list(range(group.size()))
    raise InvalidArgumentError(
        f"DistributedDataParallel was given a process group of {group.size()} of {dist.get_world_size()} ranks that "
        "torch.distributed does not know: make it by torch.distributed.new_group() or init_device_mesh()"
    )


def _places(world: Session) -> dict[int, int]:
    """Return the rank in `world` of each of torch.distributed's. Raises `InvalidArgumentError` if this process has two
    numbers.
    """
    theirs, ours = (dist.get_rank(), dist.get_world_size()), (world.rank, world.size)
    if theirs == (world.job.rank, len(world.job.hosts)):  # of which `world` may be a part
        return {peer: place for place, peer in enumerate(world.peers)}
    if theirs == ours:
        return {rank: rank for rank in range(world.size)}
    told = f"torch.distributed says rank {theirs[0]} of {theirs[1]}"
    if world.size == 1:
        raise InvalidArgumentError(
            f"{told}, and CaSync is alone: call hvd.init() after init_process_group(), or start the processes with "
            f"torchrun or with `casyncrun -np {theirs[1]} python ...`"
        )
    raise InvalidArgumentError(
        f"{told}, CaSync rank {ours[0]} of {ours[1]}: give init_process_group hvd.rank() and hvd.size()"
    )

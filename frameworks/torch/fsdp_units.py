"""The modules that `fully_shard` has made of a model. What is private to FSDP2 is read here and nowhere else.

Read in torch 2.13: `_get_fsdp_state`, `_fsdp_param_groups`, `fsdp_params`, `mesh_info` and the sizes of a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from casync.errors import InvalidArgumentError, NotAvailableError
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard

__all__ = ["AllGather", "ReduceScatter", "ShardedParameter", "Unit", "numel_of", "split", "units_of"]


@dataclass(frozen=True, eq=False)
class ShardedParameter:
    """One parameter of a unit. FSDP pads dimension 0 until each rank of the shard group has as many rows."""

    name: str
    """The name in `model.named_parameters()`."""
    parameter: DTensor
    local_shape: torch.Size
    padded_shape: torch.Size
    """The shapes of this rank's part: without the padding, and with it."""

    def part_of(self, padded: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the parameter, from its elements with the padding."""
        return padded.view(self.padded_shape)[: self.local_shape[0]].contiguous()

    def padded(self, part: torch.Tensor) -> torch.Tensor:
        """Return the part with its padding, flat: the opposite of `part_of`."""
        whole = part.new_zeros(self.padded_shape)
        whole[: self.local_shape[0]] = part
        return whole.view(-1)

    def as_dtensor(self, part: torch.Tensor) -> DTensor:
        """Return the values of this rank's part, sharded as the parameter is."""
        like = self.parameter
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )


@dataclass(frozen=True)
class Unit:
    """A module that gathers its parameters together, and reduces their gradients in one reduce-scatter. Of what that
    reduces each rank of the shard group has the parts of those that have a gradient, one after the other.
    """

    name: str
    module: FSDPModule
    parameters: tuple[ShardedParameter, ...]
    shard_group: dist.ProcessGroup | None
    replicate_group: dist.ProcessGroup | None

    @property
    def ranks(self) -> int:
        """The number of ranks in the shard group."""
        return 1 if self.shard_group is None else self.shard_group.size()

    @property
    def device(self) -> torch.device:
        return self.parameters[0].parameter.device

    def training(self) -> tuple[ShardedParameter, ...]:
        """Return the parameters that require a gradient now."""
        return tuple(one for one in self.parameters if one.parameter.requires_grad)


def numel_of(parameters: Sequence[ShardedParameter]) -> int:
    """Return the number of elements that a rank has after the reduce-scatter, with the padding."""
    return sum(parameter.padded_shape.numel() for parameter in parameters)


def split(reduced: torch.Tensor, parameters: Sequence[ShardedParameter]) -> Sequence[torch.Tensor]:
    """Return the columns of `reduced` (..., numel) for each parameter."""
    return torch.split(reduced, [parameter.padded_shape.numel() for parameter in parameters], dim=-1)


def units_of(model: torch.nn.Module) -> list[Unit]:
    """Return the units with parameters, in the order of `named_modules()`. Raises `InvalidArgumentError` if there are
    none, and `NotAvailableError` for a module on several meshes, or one that is not sharded by dimension 0 alone.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    units = []
    for module_name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        groups = [group for group in module._get_fsdp_state()._fsdp_param_groups if group.fsdp_params]
        if len(groups) > 1:
            raise NotAvailableError(
                f"{module_name or 'the model'}: its parameters are on several meshes, and FSDP2 takes no reduction of "
                "ours for such a module"
            )
        if groups:
            units.append(_unit(module_name, module, groups[0], names))
    if not units:
        raise InvalidArgumentError("no module of the model is sharded: call fully_shard(...) first")
    return units


def _unit(name: str, module: FSDPModule, group: Any, names: dict[int, str]) -> Unit:
    parameters = []
    for one in group.fsdp_params:
        parameter = names.get(id(one.sharded_param))
        if parameter is None:
            raise InvalidArgumentError(
                f"{name or 'the model'} has gathered its parameters: call compress() and quantize_all_gather() between "
                "steps, not inside forward()"
            )
        if one.fsdp_placement != Shard(0):
            raise NotAvailableError(
                f"{parameter} is sharded by {one.fsdp_placement}: casync.torch.fsdp knows dimension 0 alone"
            )
        parameters.append(
            ShardedParameter(parameter, one.sharded_param, one.sharded_size, one.padded_sharded_param_size)
        )
    mesh = group.mesh_info
    return Unit(
        name or "model",
        module,
        tuple(parameters),
        getattr(mesh, "shard_process_group", None),
        getattr(mesh, "replicate_process_group", None),
    )

"""Compressed gradients under FSDP2 and HSDP, with feedback that a checkpoint keeps by the parameters' names.

    import casync.torch.fsdp

    fully_shard(model, mesh=mesh)
    compressed = casync.torch.fsdp.compress(model, compression="onebit")
    ...
    dcp.save({"model": model_state, "casync": compressed}, checkpoint_id=folder)

The process groups whose reductions are compressed must be of the backend casync (`casync.torch.c10d`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from casync import codecs
from casync.errors import InvalidArgumentError, NotAvailableError
from torch.distributed.tensor import DTensor

from .c10d_group import Group, Named, check_momentum, group_of
from .fsdp_units import ReduceScatter, ShardedParameter, Unit, units_of

__all__ = ["FsdpCompression", "compress"]

_OLDEST = (2, 13)
_BETWEEN_REPLICAS, _BETWEEN_SHARDS = "replicate", "shard"
_HOW = {
    _BETWEEN_REPLICAS: 'init_device_mesh(..., backend_override={"replicate": "casync"})',
    _BETWEEN_SHARDS: 'init_process_group("casync"), or init_device_mesh(..., backend_override={"shard": "casync"})',
}


def compress(
    model: torch.nn.Module,
    compression: Any = None,
    *,
    reduce: Literal["replicate", "shard", "both"] = "replicate",
    min_numel: int | None = None,
) -> FsdpCompression:
    """Compress what the modules of `model` that `fully_shard` made reduce. Between steps, before the first backward;
    the same on all ranks.

    Args:
        compression: a codec, or codecs by the name of the module (`{"layers.*": "onebit", "*": "none"}`); None takes
            `CASYNC_COMPRESSION`.
        reduce: "replicate": the all-reduce between replicas of a mesh with two dimensions (HSDP). A codec with feedback
            keeps 4 bytes for each element of a shard. "shard": the reduce-scatter of gradients between the ranks that
            share a replica. It keeps 4 bytes for each element of the *unsharded* model, on each rank. "both": both.
        min_numel: modules of fewer elements are exact; None takes `CASYNC_MIN_NUMEL`.

    Returns what keeps the feedback, to be saved with the model by `torch.distributed.checkpoint`.

    Raises `InvalidArgumentError` if a group is not of the backend casync, or there is no such dimension, and
    `NotAvailableError` for a torch before 2.13, or a codec that takes over the optimizer's momentum.
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST:
        raise NotAvailableError(f"casync.torch.fsdp needs torch 2.13 or newer, and this is {torch.__version__}")
    if reduce not in ("replicate", "shard", "both"):
        raise InvalidArgumentError(f'reduce={reduce!r}: it must be "replicate", "shard" or "both"')
    wanted = (_BETWEEN_REPLICAS, _BETWEEN_SHARDS) if reduce == "both" else (reduce,)
    reductions = []
    for unit in units_of(model):
        of_unit = [_Reduction(unit, kind, compression, min_numel) for kind in wanted]
        by_kind = {one.kind: one for one in of_unit}
        unit.module.set_custom_reduce_scatter(
            _Communication(by_kind.get(_BETWEEN_SHARDS), by_kind.get(_BETWEEN_REPLICAS))
        )
        reductions += of_unit
    return FsdpCompression(reductions)


class FsdpCompression:
    """What codecs keep of a model's gradients, as `torch.distributed.checkpoint` saves and loads it (a `Stateful`)."""

    def __init__(self, reductions: Sequence[_Reduction]) -> None:
        self._reductions = reductions

    def state_dict(self) -> dict[str, DTensor]:
        """For each parameter what the ranks have not sent of its gradient, as a mean over them: by its name, sharded as
        it is. Collective, between steps.
        """
        return {name: value for one in self._reductions for name, value in one.pending().items()}

    def load_state_dict(self, state_dict: Mapping[str, DTensor]) -> None:
        """Have every rank begin with that mean, whatever the number of ranks was: so the mean of what is still to be
        sent stays what it was. Collective, between steps. All else that codecs keep begins anew.
        """
        for one in self._reductions:
            one.load_pending(state_dict)


class _Reduction:
    """One reduction of one unit, and its name."""

    def __init__(self, unit: Unit, kind: str, compression: Any, min_numel: int | None) -> None:
        self.kind = kind
        self._unit = unit
        between = unit.replicate_group if kind == _BETWEEN_REPLICAS else unit.shard_group
        if between is None:
            raise InvalidArgumentError(
                f'{unit.name} has no dimension "{kind}": its mesh has one dimension. Give fully_shard() a mesh with '
                f'two, or compress(reduce="{_BETWEEN_SHARDS if kind == _BETWEEN_REPLICAS else _BETWEEN_REPLICAS}")'
            )
        group = group_of(between)
        if group is None:
            raise InvalidArgumentError(
                f'the ranks along the dimension "{kind}" of {unit.name} are a group of the backend '
                f"{dist.get_backend(between)}, which compresses nothing: make it one of casync, by {_HOW[kind]}"
            )
        self.group: Group = group
        rules = group.rules if compression is None else codecs.rules_of(compression)
        check_momentum(rules)
        self.numel = unit.numel * (unit.ranks if kind == _BETWEEN_SHARDS else 1)
        limit = group.min_numel if min_numel is None else min_numel
        codec = "none" if self.numel < limit else codecs.codec_by_name(rules, unit.name)
        self.named = Named(f"fsdp.{kind}.{unit.name}", codec)

    # --- what is pending ----------------------------------------------------------------------------------------------

    def _key(self, parameter: ShardedParameter) -> str:
        return f"{self.kind}.{parameter.name}"

    def pending(self) -> dict[str, DTensor]:
        unit = self._unit
        kept = self.group.session.codec_states
        mine = torch.zeros(self.numel)
        if self.named.name in kept.residual_names():
            mine = torch.from_numpy(kept.residual(self.named.name))
        mine = mine.to(unit.device)
        if self.kind == _BETWEEN_SHARDS:
            part = mine.new_empty(unit.numel)
            self.group.reduce_scatter([part], [mine], dist.ReduceOp.AVG, _exact(self.named)).wait()
            mine = part
        if unit.replicate_group is not None:
            mine = _mean(mine, unit.replicate_group, self.named)
        return {
            self._key(parameter): parameter.as_dtensor(parameter.part_of(values))
            for parameter, values in zip(unit.parameters, unit.split(mine), strict=True)
        }

    def load_pending(self, state: Mapping[str, DTensor]) -> None:
        unit = self._unit
        columns = []
        for parameter in unit.parameters:
            given = state.get(self._key(parameter))
            if given is None or given.shape != parameter.parameter.shape:
                shape = "nothing" if given is None else f"shape {tuple(given.shape)}"
                raise InvalidArgumentError(
                    f"the state has {shape} under {self._key(parameter)!r}, a parameter of shape "
                    f"{tuple(parameter.parameter.shape)}: it belongs to another model, or to another reduce="
                )
            if self.kind == _BETWEEN_REPLICAS:
                columns.append(parameter.padded(given.to_local()))
                continue
            rows = parameter.padded_shape[0] * unit.ranks
            whole = given.full_tensor()
            padded = whole.new_zeros((rows, *whole.shape[1:]))
            padded[: whole.shape[0]] = whole
            columns.append(padded.view(unit.ranks, -1))
        pending = torch.cat(columns, dim=-1).reshape(-1)
        self.group.session.codec_states.forget([self.named.name])
        if self.named.codec != "none":
            self.group.session.codec_states.set_residual(self.named.name, pending.cpu().numpy())


class _Communication(ReduceScatter):
    """What FSDP calls for a unit's gradients: `allocate` for both ends, then the reduce-scatter, if there are shards.
    The all-reduce between replicas follows, of which it says nothing; so its name is said before.
    """

    def __init__(self, shards: _Reduction | None, replicas: _Reduction | None) -> None:
        self._shards = shards
        self._replicas = replicas

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self._replicas is not None:
            self._replicas.group.expect(self._replicas.named, self._replicas.numel)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """A parameter without a gradient is not in `input_tensor`: then it goes as the group's options say."""
        shards = self._shards
        if shards is None or input_tensor.numel() != shards.numel:
            plain: dist.Work | None = dist.reduce_scatter_single(
                output_tensor, input_tensor, group=group, op=op, async_op=async_op
            )
            return plain
        work = shards.group.reduce_scatter([output_tensor], [input_tensor], op, shards.named)
        if async_op:
            return work
        work.wait()
        return None


def _exact(named: Named) -> Named:
    return Named(f"{named.name}.pending", "none")


def _mean(values: torch.Tensor, process_group: dist.ProcessGroup, named: Named) -> torch.Tensor:
    """Over a group of any backend, exact."""
    group = group_of(process_group)
    if group is None:
        dist.all_reduce(values, group=process_group)
        return values / process_group.size()
    group.expect(_exact(named), values.numel())
    group.allreduce([values], dist.ReduceOp.AVG).wait()
    return values

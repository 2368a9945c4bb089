"""Compressed gradients under FSDP2 and HSDP, with feedback that a checkpoint keeps by the parameters' names.

    import casync.torch.fsdp

    fully_shard(model, mesh=mesh)
    compressed = casync.torch.fsdp.compress(model, compression="onebit")
    ...
    dcp.save({"model": model_state, "casync": compressed}, checkpoint_id=folder)

The process groups whose reductions are compressed must be of the backend casync (`casync.torch.c10d`).
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from casync.codecs import specs as codecs
from casync.codecs.compression import given
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.collectives.settings import check_unwatched
from casync.errors import InvalidArgumentError, NotAvailableError
from torch.distributed.tensor import DTensor

from .c10d_group import Group, check_momentum, group_of
from .c10d_names import NamedOperation
from .fsdp_gather import BLOCK, QuantizedAllGather, exact_because
from .fsdp_units import ReduceScatter, ShardedParameter, Unit, numel_of, split, units_of
from .loss_scale import LossScale

__all__ = ["FsdpCompression", "Report", "compress", "quantize_all_gather"]

_LOG = logging.getLogger("casync")
_OLDEST = (2, 13)
_BETWEEN_REPLICAS, _BETWEEN_SHARDS = "replicate", "shard"
_HOW = {
    _BETWEEN_REPLICAS: 'init_device_mesh(..., backend_override={"replicate": "casync"})',
    _BETWEEN_SHARDS: 'init_process_group("casync"), or init_device_mesh(..., backend_override={"shard": "casync"})',
}


def compress(
    model: torch.nn.Module,
    compression: CompressionLike = None,
    *,
    reduce: Literal["replicate", "shard", "both"] = "replicate",
    rules: CodecsByName | None = None,
    min_numel: int | None = None,
    topology: str | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> FsdpCompression:
    """Compress what the modules of `model` that `fully_shard` made reduce. Between steps, before the first backward;
    the same on all ranks. Parameters may be frozen or not, and that may change between steps.

    Args:
        compression: a codec, or codecs by the name of the module (`{"layers.*": "onebit", "*": "none"}`); None takes
            `CASYNC_COMPRESSION`.
        reduce: "replicate": the all-reduce between replicas of a mesh with two dimensions (HSDP). A codec with feedback
            keeps 4 bytes for each element of a shard. "shard": the reduce-scatter of gradients between the ranks that
            share a replica. It keeps 4 bytes for each element of the *unsharded* model, on each rank. "both": both.
        rules: codecs by the name of the module, in place of `compression`.
        min_numel: modules with fewer elements that require a gradient are exact; None takes `CASYNC_MIN_NUMEL`.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes that of the group.
        grad_scaler: the GradScaler that scales the loss, if there is one and a codec keeps residuals.

    Returns what keeps the feedback, to be saved with the model by `torch.distributed.checkpoint`. Its `report()` says
    what is compressed, and what is not and why.

    Raises `InvalidArgumentError` if a group is not of the backend casync, or there is no such dimension, and
    `NotAvailableError` for a torch before 2.13, or a codec that takes over the optimizer's momentum.
    """
    _check_version()
    if reduce not in ("replicate", "shard", "both"):
        raise InvalidArgumentError(f'reduce={reduce!r}: it must be "replicate", "shard" or "both"')
    wanted = (_BETWEEN_REPLICAS, _BETWEEN_SHARDS) if reduce == "both" else (reduce,)
    reductions = []
    for unit in units_of(model):
        of_unit = [
            _Reduction(unit, kind, given(compression, rules), min_numel, topology, grad_scaler) for kind in wanted
        ]
        by_kind = {one.kind: one for one in of_unit}
        unit.module.set_custom_reduce_scatter(
            _Communication(by_kind.get(_BETWEEN_SHARDS), by_kind.get(_BETWEEN_REPLICAS))
        )
        reductions += of_unit
    compressed = FsdpCompression(reductions)
    if given(compression, rules) is not None:
        shapes = {one.module: one.shape for one in reductions}
        codecs.check_rules(reductions[0].rules, shapes, may_warn=dist.get_rank() == 0)
    if dist.get_rank() == 0:
        _LOG.info("fsdp.compress:\n%s", compressed.report())
    return compressed


def quantize_all_gather(model: torch.nn.Module) -> Report:
    """Gather the parameters of the modules that `fully_shard` made in 8 bits, in blocks of 256 values with a scale
    each, rounded to the nearest of 255 levels: qwZ of ZeRO++ (Wang et al., ICLR 2024, section 3.1). Between steps; on
    all ranks.

    All ranks compute with the same rounded weights. Shards, the optimizer and checkpoints have the exact ones. A block
    with a value that is not finite becomes NaN. Parameters of one dimension stay exact. Where `reshard_after_forward`
    is a number of ranks, the gather of the backward pass is exact too: it is of what the forward pass had rounded. The
    shard group may be of any backend.

    Returns what is rounded, and what is not and why.

    Raises `InvalidArgumentError` if no module is sharded, and `NotAvailableError` for a torch before 2.13, a module on
    several meshes or sharded by another dimension than the first, and, at the gather, for parameters that are not
    gathered as floats.
    """
    _check_version()
    report = Report({}, {})
    for unit in units_of(model):
        unit.module.set_custom_all_gather(QuantizedAllGather(unit))
        for one in unit.parameters:
            if why := exact_because(one) or ("its shard group has one rank" if unit.ranks == 1 else ""):
                report.exact[one.name] = why
            else:
                report.compressed[one.name] = f"int8 in blocks of {BLOCK}"
    return report


def _check_version() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST:
        raise NotAvailableError(f"casync.torch.fsdp needs torch 2.13 or newer, and this is {torch.__version__}")


@dataclass(frozen=True)
class Report:
    """The state of what is sent of each parameter, by its name: of a gradient after "shard." or "replicate."."""

    compressed: dict[str, str]
    """The codecs of what is compressed, by name."""
    exact: dict[str, str]
    """The reasons why the rest is not, by name."""

    def __str__(self) -> str:
        lines = [f"{name}: {codec}" for name, codec in self.compressed.items()]
        return "\n".join([*lines, *(f"{name}: exact, since {why}" for name, why in self.exact.items())])


class FsdpCompression:
    """The state that codecs keep of a model's gradients, for `torch.distributed.checkpoint` (a `Stateful`)."""

    def __init__(self, reductions: Sequence[_Reduction]) -> None:
        self._reductions = reductions

    def report(self) -> Report:
        """Return what is compressed, and what is not and why, as things are now."""
        report = Report({}, {})
        for one in self._reductions:
            one.describe(report)
        return report

    def state_dict(self) -> dict[str, DTensor]:
        """Return the mean over the ranks of what they have not sent of each parameter that requires a gradient: by its
        name, sharded as it is. Collective, between steps.
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

    def __init__(
        self,
        unit: Unit,
        kind: str,
        compression: CompressionLike,
        min_numel: int | None,
        topology: str | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
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
        if refused := rules.beyond_numel():
            raise InvalidArgumentError(
                f"rules={refused}: FSDP2 reduces the parameters of a module as one row, so a rule can ask for its "
                "numel alone; choose by the name of the module"
            )
        check_momentum(rules)
        check_unwatched(rules, group.session.config)
        scale = LossScale(scaler, rules)
        if not group.has_scaler:
            scale.look_for_another("fsdp.compress")
        self._topology, self._scaler = topology, scaler
        self.rules, self.module, self.shape = rules, unit.name, (sum(one.parameter.numel() for one in unit.training()),)
        self._codec = codecs.codec_by_name(rules, unit.name, self.shape)
        self._least = group.min_numel if min_numel is None else min_numel
        self._partial = 0  # steps in which only some that require a gradient had one
        self._aside: dict[str, torch.Tensor] = {}
        """The pending part of parameters that require no gradient any more, by parameter."""
        self._take(unit.training())

    @property
    def ranks(self) -> int:
        """The number of ranks in the shard group."""
        return self._unit.ranks

    # --- what is reduced ----------------------------------------------------------------------------------------------

    def _take(self, trained: tuple[ShardedParameter, ...]) -> None:
        self.trained = trained
        self.numel = numel_of(trained) * self._rows()
        name = f"fsdp.{self.kind}.{self._unit.name}"
        if len(trained) < len(self._unit.parameters):  # an operation of its own, of another shape
            name += f".{zlib.crc32(repr([one.name for one in trained]).encode()):08x}"
        codec = codecs.from_numel(self._codec, self.numel, self._least, self.group.min_numel)
        self.named = NamedOperation(name, codec, self._topology, self._scaler)

    def follow(self) -> _Reduction:
        """Go by what requires a gradient now. Call it before each reduction. What is pending of a parameter that has
        been frozen waits until it requires one again.
        """
        trained = self._unit.training()
        if trained != self.trained:
            aside = {**self._aside, **self._columns(self._kept())}
            self.group.session.codec_states.forget([self.named.name])
            self._take(trained)
            if self.named.codec != "none" and any(one.name in aside for one in trained):
                self._keep({one.name: aside.pop(one.name) for one in trained if one.name in aside})
            self._aside = aside
        return self

    def is_whole(self, numel: int) -> bool:
        """Whether a reduction of so many elements is of all that require a gradient. The first that is not is told."""
        if numel == self.numel:
            return True
        self._partial += 1
        if self._partial == 1 and self.named.codec != "none":
            _LOG.warning(
                "%s: of the parameters that require a gradient some have none in this step, so its gradients are "
                "reduced as the options of the group say, and what is pending waits (fsdp.compress)",
                self._unit.name,
            )
        return False

    def describe(self, report: Report) -> None:
        """Add what is known of each parameter."""
        self.follow()
        for one in self._unit.parameters:
            why = ""
            if one not in self.trained:
                why = "it requires no gradient"
            elif self.numel < self._least:
                counted = f"{self._unit.name} has {self.numel} elements that require a gradient"
                why = f"{counted}, and min_numel is {self._least}"
            elif self._codec == "none":
                why = f"the codec of {self._unit.name} is none"
            if why:
                report.exact[self._key(one)] = why
            else:
                report.compressed[self._key(one)] = self._codec

    # --- what is pending ----------------------------------------------------------------------------------------------

    def _key(self, parameter: ShardedParameter) -> str:
        return f"{self.kind}.{parameter.name}"

    def _kept(self) -> torch.Tensor | None:
        """This rank's residual; None if it has none."""
        kept = self.group.session.codec_states
        if self.named.name not in kept.residual_names():
            return None
        return torch.from_numpy(kept.residual(self.named.name))

    def _rows(self) -> int:
        return self.ranks if self.kind == _BETWEEN_SHARDS else 1

    def _columns(self, kept: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the columns of each parameter, by name: a row for each rank that gets a part of the result."""
        if kept is None:
            return {}
        parts = split(kept.view(self._rows(), -1), self.trained)
        return {one.name: part.clone() for one, part in zip(self.trained, parts, strict=True)}

    def _keep(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Make `columns`, in turn, this rank's residual. Nothing is pending of a parameter that has no columns."""
        if self.named.codec == "none":
            return
        rows = self._rows()
        whole = [
            columns[one.name].to("cpu") if one.name in columns else torch.zeros(rows, one.padded_shape.numel())
            for one in self.trained
        ]
        pending = torch.cat([part.reshape(rows, -1) for part in whole], dim=-1).reshape(-1)
        self.group.session.codec_states.set_residual(self.named.name, pending.numpy())

    def pending(self) -> dict[str, DTensor]:
        unit = self.follow()._unit
        if not self.trained:
            return {}
        kept = self._kept()
        mine = (torch.zeros(self.numel) if kept is None else kept).to(unit.device)
        if self.kind == _BETWEEN_SHARDS:
            part = mine.new_empty(numel_of(self.trained))
            self.group.reduce_scatter([part], [mine], dist.ReduceOp.AVG, _exact(self.named)).wait()
            mine = part
        if unit.replicate_group is not None:
            mine = _mean(mine, unit.replicate_group, self.named)
        return {
            self._key(parameter): parameter.as_dtensor(parameter.part_of(values))
            for parameter, values in zip(self.trained, split(mine, self.trained), strict=True)
        }

    def load_pending(self, state: Mapping[str, DTensor]) -> None:
        self.follow()
        self._aside = {}
        columns = {}
        for parameter in self.trained:
            given = state.get(self._key(parameter))
            if given is None or given.shape != parameter.parameter.shape:
                shape = "nothing" if given is None else f"shape {tuple(given.shape)}"
                raise InvalidArgumentError(
                    f"the state has {shape} under {self._key(parameter)!r}, a parameter of shape "
                    f"{tuple(parameter.parameter.shape)}: it belongs to another model, or to another reduce="
                )
            if self.kind == _BETWEEN_REPLICAS:
                columns[parameter.name] = parameter.padded(given.to_local())
                continue
            rows = parameter.padded_shape[0] * self.ranks
            whole = given.full_tensor()
            padded = whole.new_zeros((rows, *whole.shape[1:]))
            padded[: whole.shape[0]] = whole
            columns[parameter.name] = padded.view(self.ranks, -1)
        self.group.session.codec_states.forget([self.named.name])
        if columns:
            self._keep(columns)


class _Communication(ReduceScatter):
    """The object that FSDP calls for a unit's gradients: `allocate` for both ends, then the reduce-scatter if there are
    shards. The all-reduce between replicas follows, of which FSDP says nothing; so its name is said before.
    """

    def __init__(self, shards: _Reduction | None, replicas: _Reduction | None) -> None:
        self._shards = shards
        self._replicas = replicas

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self._replicas is not None:
            replicas, numel = self._replicas.follow(), math.prod(int(one) for one in size)
            # The first call is for what goes into the reduce-scatter, the second one for what comes out of it.
            if numel == replicas.numel * replicas.ranks or replicas.is_whole(numel):
                replicas.group.names.expect(replicas.named, replicas.numel)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """A parameter without a gradient is not in `input_tensor`. If it requires one, this goes as the group's options
        say.
        """
        shards = self._shards
        if shards is None or not shards.follow().is_whole(input_tensor.numel()):
            plain: dist.Work | None = dist.reduce_scatter_single(
                output_tensor, input_tensor, group=group, op=op, async_op=async_op
            )
            return plain
        work = shards.group.reduce_scatter([output_tensor], [input_tensor], op, shards.named)
        if async_op:
            return work
        work.wait()
        return None


def _exact(named: NamedOperation) -> NamedOperation:
    return NamedOperation(f"{named.name}.pending", "none")


def _mean(values: torch.Tensor, process_group: dist.ProcessGroup, named: NamedOperation) -> torch.Tensor:
    """Over a group of any backend, exact."""
    group = group_of(process_group)
    if group is None:
        dist.all_reduce(values, group=process_group)
        return values / process_group.size()
    group.names.expect(_exact(named), values.numel())
    group.allreduce([values], dist.ReduceOp.AVG).wait()
    return values

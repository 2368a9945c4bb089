"""DistributedTrainer: a gluon Trainer whose gradients are synchronised while backward still runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from casync.codecs import specs as codecs
from casync.codecs.compression import Compression
from casync.codecs.specs import CompressionLike
from casync.collectives.gradient_submits import OptimizerSettings
from casync.collectives.parameter_groups import Groups
from casync.collectives.replicas import Replicas
from casync.collectives.settings import Settings
from casync.config.rules import Shape
from casync.errors import NotAvailableError
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.process_sets import ProcessSet

from .gradients import Gradients
from .loading import mx
from .momentum import Momentum
from .optimizer import DistributedOptimizer
from .tensors import TENSORS

__all__ = ["DistributedTrainer"]

_VELOCITIES = "velocities"  # in a state_dict


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A `gluon.Trainer` that steps with the mean of all ranks' gradients.

    `step()` gives the gradients to MXNet's engine, which has each reduced as soon as backward has computed it, and the
    updates, which follow when they are. It does not wait. What ends an operation (`HorovodInternalError`) is raised
    where a parameter, or what was computed from it, is waited for next.

    Args:
        params: `net.collect_params()`, or a dict or list of parameters, each on one context of the host.
        optimizer: a name or an `mx.optimizer.Optimizer`, with `optimizer_params` as in gluon's.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name, of which the first whose pattern
            matches is taken: `{"*bias": "none", "dense0_weight": "fp16", "*": "onebit"}`. A name in full overrides
            `Config.min_numel`. `Compression.none` takes `Config.compression`.
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after.
        prefix: stands before the parameters' names. Two trainers that compress must not share names.
        num_groups: gradients are submitted together in so many groups, each when its last one is there. 0: each alone.
        process_set: the ranks whose gradients are reduced together. On other ranks nothing is.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        momentum: for codecs that take over the optimizer's momentum (dgc). None takes SGD's or NAG's, and switches it
            off there; any other optimizer needs a number, 0 if it has none to take over.

    `init()` comes first. Call its methods on one thread.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: CompressionLike = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        *,
        topology: str | None = None,
        momentum: float | None = None,
    ) -> None:
        settings = Settings.of(
            compression=compression,
            topology=topology,
            process_set=process_set,
            predivide=gradient_predivide_factor,
            num_groups=num_groups,
        )
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer.wrapped
            warnings.warn("DistributedTrainer takes the optimizer itself, not a DistributedOptimizer", stacklevel=2)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._prefix = prefix or ""
        self._gradients = Gradients(settings)
        self._groups: Groups[str] = Groups(settings.groups)
        self._parts: list[list[str]] = []
        self._replicas = Replicas(TENSORS, settings, next(iter(self._by_name()), ""))
        self._momentum: Momentum | None = None
        if settings.is_distributed and settings.takes_momentum:
            self._momentum = Momentum(self._optimizer, momentum)
        self._uncompressed: list[str] = []
        shapes = {name: _shape_of(param) for name, param in self._by_name().items()}
        codecs.check_rules(settings.rules, shapes, may_warn=default.session().rank == 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedTrainer:
        """Itself. The parameters of a net know their trainer, so a copy of the net would bring along a copy of this."""
        return self

    def _by_name(self) -> dict[str, Any]:
        """The parameters that have gradients."""
        return {self._prefix + param.name: param for param in self._params if param.grad_req != "null"}

    def _allreduce_grads(self) -> None:
        if not self._gradients.settings.is_distributed:
            return
        self._gradients.check()
        params = self._by_name()
        new = self._new(list(params))
        self._replicas.step({name: param.data() for name, param in params.items()})
        scaler = getattr(self, "_amp_loss_scaler", None)  # of mx.contrib.amp
        scale = 1.0 if scaler is None else float(scaler.loss_scale)
        terms = OptimizerSettings(loss_scale=scale)
        if self._momentum is not None:
            terms = self._momentum.terms(self._optimizer, scale)
        for i, part in enumerate(self._parts):
            # Without those that have been frozen since.
            named = [(name, _gradient(params[name])) for name in part if name in params]
            if named:
                self._gradients.give(named, -i, terms)
        if self._momentum is not None:
            if new:
                self._uncompressed = self._gradients.uncompressed([name for part in self._parts for name in part])
            for name in (name for name in self._uncompressed if name in params):
                self._momentum.apply(name, params[name].list_grad()[0], scale)

    def _new(self, names: list[str]) -> list[str]:
        """Return those of `names` that no step has seen yet, and give them their parts from now on."""
        seen = {name for part in self._parts for name in part}
        new = [name for name in names if name not in seen]
        self._gradients.know(new)
        joined = self._groups.join(new)
        self._parts += [group.members for group in dict.fromkeys(joined) if group is not None]
        self._parts += [[name] for name, group in zip(new, joined, strict=True) if group is None]
        return new

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Update as gluon does. A parameter that backward has not reached here may have been reached on another rank,
        so with `ignore_stale_grad` it is updated as there.
        """
        if ignore_stale_grad and self._gradients.settings.is_distributed:
            for param in self._by_name().values():
                param.data()._fresh_grad = True
        super()._update(ignore_stale_grad)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and codec state by parameter name, as NumPy arrays. The optimizer's own state is in
        gluon's `save_states`. Waits for gradients that are under way. Save one per rank.
        """
        velocities = {} if self._momentum is None else self._momentum.velocities
        kept = {name: velocity.asnumpy() for name, velocity in velocities.items()}
        return {**self._gradients.saved_state(), _VELOCITIES: kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put back what `state_dict()` gave, also before the first step. State of another rank starts anew, with a
        warning.
        """
        self._gradients.load_saved_state(list(self._by_name()), state_dict)
        if self._momentum is not None:
            self._momentum.load(state_dict[_VELOCITIES])


def _shape_of(param: Any) -> Shape:
    """Return the parameter's shape; None as long as MXNet has not inferred it, which it shows by 0 or -1 in it."""
    shape = param.shape
    return None if shape is None or any(extent <= 0 for extent in shape) else tuple(shape)


def _gradient(param: Any) -> Any:
    """Return its gradient; zeros where backward has not reached it since the last step."""
    if len(param.list_ctx()) != 1:
        raise NotAvailableError(f"parameter {param.name} is on {len(param.list_ctx())} contexts: give each rank one")
    gradient = param.list_grad()[0]
    if not param.data()._fresh_grad:
        gradient[:] = 0
    return gradient

"""DistributedOptimizer: an optimizer whose gradients are synchronised while backward still runs.

A hook on each parameter submits its gradient, in place, as soon as backward has accumulated it. `step()` waits for all
of them at once and then runs the optimizer's own step. In a world of one there are no hooks, and nothing but the
optimizer itself.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from casync import codecs, default, state
from casync.collectives.replicas import Replicas
from casync.collectives.settings import Settings, positive
from casync.compression import Compression
from casync.default import GLOBAL_PROCESS_SET as global_process_set
from casync.errors import InvalidArgumentError
from casync.terms import Adasum, Average

from .gradients import Gradients
from .loss_scale import LossScale
from .ops import allreduce_
from .parameter_names import names_of
from .tensors import TENSORS

__all__ = ["DistributedOptimizer"]

_ZEROED_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). This can "
    "cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)
_SCALER_TOO_EARLY = (
    "scaler.step(optimizer) was called while gradients are being synchronised. Call optimizer.synchronize() after "
    "loss.backward(), then scaler.unscale_(optimizer), and scaler.step(optimizer) within optimizer.skip_synchronize()"
)


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that `DistributedOptimizer` adds in front of the wrapped optimizer's class."""

    # Made by `_adopt` instead of __init__: the wrapped optimizer has run its own already, and keeps its state.
    _casync: Settings
    _gradients: Gradients
    _gradients_of: type[Gradients] = Gradients

    def _adopt(
        self,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        loss_scale: LossScale,
        momentum: float | None,
        names: dict[torch.nn.Parameter, str],
    ) -> None:
        # A scheduler made before wraps `step` on the instance; kept, it would bypass ours.
        self.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k not in ("step", "zero_grad")})
        self._casync = settings
        self._loss_scale = loss_scale
        self._gradients = self._gradients_of(self, settings, loss_scale, momentum, names)
        self._handles = self._gradients.handles
        self._parameter_names = names
        self.op = settings.op
        self._synchronized = False
        self._should_synchronize = True
        self._replicas = Replicas(TENSORS, settings.process_set)
        if self._gradients.is_distributed:
            self._gradients.register_hooks()

    # --- what a training script calls ---------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until every gradient is the reduced one; those that backward did not reach are submitted first, as
        zeros.

        `step()` does this itself. Call it to change gradients in between (clipping), and then step within
        `skip_synchronize()`. Raises what ended an operation (`casync.errors.HorovodInternalError`) once all have ended.
        """
        if self._gradients.is_distributed:
            self._gradients.prepare()
            try:
                self._gradients.submit_missing()
            finally:
                # Also when a submit failed: what was submitted must end before the gradients are anybody's again.
                self._gradients.wait()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step()` does not synchronise: for after an explicit `synchronize()`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronise the gradients, then step. Gradients that `closure` computes are synchronised after each call of
        it.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(_STEP_AFTER_SYNCHRONIZE, stacklevel=2)
            if closure is None or self._handles:
                self.synchronize()
            if closure is not None:
                closure = self._synchronizing(closure)
        self._synchronized = False
        if self._gradients.is_distributed:
            self._check_replicas()
        if self._gradients.momentum is not None:
            self._gradients.momentum.take()
        return super().step(closure) if closure is not None else super().step()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What `GradScaler.step` asks first: the moment to refuse what would go wrong with its gradients."""
        if self._gradients.is_distributed:
            if self._handles:
                raise InvalidArgumentError(_SCALER_TOO_EARLY)
            self._loss_scale.check("DistributedOptimizer")
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    def _check_replicas(self) -> None:
        entries = self._gradients.entries.values()
        self._replicas.step(entries, (entry.parameter.detach() for entry in entries))

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False  # by us, not by the program
            return loss

        return run

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Reset gradients. AssertionError between `backward()` and `step()`, when they are being synchronised."""
        if self._handles:
            raise AssertionError(_ZEROED_TOO_EARLY)
        super().zero_grad(*args, **kwargs)

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes accumulate locally before a gradient is synchronised."""
        return self._gradients.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self._gradients.passes = positive(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on, `passes` backward passes accumulate locally before a gradient is synchronised."""
        self._gradients.passes = positive(passes)
        self._gradients.start_anew()

    def flush_residuals(self) -> None:
        """Make every gradient the mean over the ranks of what codecs have held back of it, uncompressed; nothing is
        pending after that. Parameters of which nothing was get zeros.

        Collective, between steps; one more step within `skip_synchronize()` applies it. For the end of a training, or
        before it goes on without compression.
        """
        if self._gradients.is_under_way:
            raise AssertionError("flush_residuals() was called after loss.backward() but before optimizer.step()")
        for entry in self._gradients.entries.values():
            owner = self._gradients.session()
            held = torch.from_numpy(state.take_pending(owner, entry.tensor, entry.parameter.numel()))
            name = f"flush.{entry.tensor}"
            mean = allreduce_(held, name=name, op=Average, process_set=self._casync.process_set)
            entry.parameter.grad = mean.view(entry.parameter.shape).to(entry.parameter.dtype)
        self._synchronized = True

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state; with a lossy codec, this rank's residuals and codec state by parameter name under the
        key "casync".

        Local; call it between steps. Save one per rank, if training is to continue exactly.
        """
        shared = super().state_dict()
        if self._gradients.momentum is not None:
            shared = self._gradients.momentum.restored(shared)
        if not (self._gradients.is_distributed and self._casync.keeps_something):
            return shared
        if self._gradients.is_under_way:
            raise AssertionError("optimizer.state_dict() was called after loss.backward() but before optimizer.step()")
        return {**shared, state.STATE_KEY: self._gradients.saved_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave, on any rank. Residuals of another rank's checkpoint start at zero, with a
        warning.
        """
        self.load_shared_state_dict({key: value for key, value in state_dict.items() if key != state.STATE_KEY})
        if self._gradients.is_distributed and self._casync.keeps_something:
            self._gradients.load_saved_state(state_dict.get(state.STATE_KEY))

    def load_shared_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what all ranks share, and leave the residuals as they are. Waits for gradients that are being
        synchronised.
        """
        if self._handles:
            self._gradients.wait()
        super().load_state_dict(state_dict)
        if self._gradients.momentum is not None:
            self._gradients.momentum.take()
        self._synchronized = False
        self._should_synchronize = True


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: Any = global_process_set,
    *,
    topology: str | None = None,
    momentum: float | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> Any:
    """An optimizer of the same class that steps with gradients reduced over all ranks.

    Args:
        optimizer: any `torch.optim.Optimizer`. Its state and parameter groups are taken over, so use only the result
            from now on.
        named_parameters: `model.named_parameters()`. Names appear in messages and in checkpoints; without them
            parameters are numbered. Two optimizers that compress must not share names.
        compression: a codec (`Compression.onebit()`, "onebit"), or codecs by name, of which the first whose pattern
            matches is taken: `{"*.bias": "none", "head.weight": "fp16", "*": "onebit"}`. A name in full overrides
            `Config.min_numel`. `Compression.none` takes `Config.compression`.
        backward_passes_per_step: how many backward passes add up locally before gradients are synchronised.
        op: Average, Sum, Min, Max or Product. Or Adasum: each rank's optimizer makes a step of its own from its own
            gradients, and what these steps change is reduced (docs/adasum.md).
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after: with
            Average.
        num_groups: deprecated, the same as `groups`.
        groups: lists of parameters whose gradients are submitted together, when backward has reached all of a list;
            others go alone. Or a number: all parameters in their order, in so many lists of equal length. Small
            gradients are batched without it as well. Ranks need not give the same.
        sparse_as_dense: sparse gradients (of `Embedding(sparse=True)`) travel as dense tensors, with the codec that
            their name has. False: ranks exchange the elements that there are, uncompressed or in 16 bits, with Average
            or Sum. On all ranks a gradient must be sparse from the first step in which it is one anywhere.
        process_set: the ranks whose gradients are reduced together. On other ranks nothing is: the optimizer steps with
            their own.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        momentum: for codecs that take over the optimizer's momentum (dgc). None takes SGD's, group by group, and
            switches it off there; any other optimizer needs a number, 0 if it has none to take over.
        grad_scaler: the GradScaler that scales the loss, if there is one and a codec keeps residuals.

    `init()` comes first. Call `step()` and the rest on one thread; hooks run on the thread that runs backward.
    """
    settings = Settings.of(
        compression=compression,
        topology=topology,
        process_set=process_set,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        num_groups=num_groups,
        groups=groups,
        is_parameter=torch.Tensor,
        sparse_as_dense=sparse_as_dense,
    )
    names = names_of(optimizer, named_parameters)
    held = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    codecs.check_rules(default.session(), settings.rules, held)
    base = _DistributedOptimizer
    if settings.op == Adasum and settings.is_distributed:
        from .deltas import DeltaOptimizer as base
    original = type(optimizer)
    cls: type[_DistributedOptimizer] = type(
        original.__name__, (base, original), {"__module__": __name__, "__doc__": original.__doc__}
    )
    distributed = cls.__new__(cls)
    distributed._adopt(optimizer, settings, LossScale(grad_scaler, settings.rules), momentum, names)
    return distributed

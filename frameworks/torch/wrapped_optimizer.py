"""The methods that `DistributedOptimizer` adds to an optimizer.

A hook on each parameter submits its gradient, in place, as soon as backward has accumulated it. `step()` waits for all
of them at once and then runs the optimizer's own step. In a world of one there are no hooks, and nothing but the
optimizer itself.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from casync.checkpoint import optimizer as state
from casync.codecs import specs as codecs
from casync.codecs.specs import CompressionLike
from casync.collectives.replicas import Replicas
from casync.collectives.settings import Settings, positive, rules_and_topology
from casync.errors import CallOrderError, InvalidArgumentError, NotAvailableError
from casync.session import default
from casync.tensors.signature import Average, OpKind, Sum
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable it imports the compiler when it is called

from .gradients import Gradients
from .in_place import poured
from .loss_scale import LossScale
from .ops import allreduce_
from .parameter_names import shapes_of
from .tensors import TENSORS

__all__ = ["_DistributedOptimizer"]

_ZEROED_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition. Call it after optimizer.step(). If the backward pass was "
    "that of another model's loss (a GAN), switch these gradients off in it, with requires_grad_(False)."
)
_BETWEEN_STEPS = "{} was called after loss.backward() but before optimizer.step(). Call it after optimizer.step()."
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
    _wrapped_class: type[torch.optim.Optimizer]
    """The class of the optimizer that was wrapped."""

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
        self._wraps = [weakref.ref(optimizer), *optimizer.__dict__.get("_wraps", ())]
        self._distribute(settings, loss_scale, momentum, names)
        if self._gradients.is_distributed:
            self._gradients.start()

    def _distribute(
        self,
        settings: Settings,
        loss_scale: LossScale,
        momentum: float | None,
        names: Mapping[torch.nn.Parameter, str],
    ) -> None:
        self._casync = settings
        self._loss_scale = loss_scale
        self._gradients = self._gradients_of(self, settings, loss_scale, momentum, names)
        self._handles = self._gradients.handles
        self._parameter_names = self._gradients.names
        self.op = settings.op
        self._synchronized = False
        self._should_synchronize = True
        held = (names.get(parameter, "") for group in self.param_groups for parameter in group["params"])
        self._replicas = Replicas(TENSORS, settings, next(held, ""))

    def _unwrap(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
    ) -> Iterable[tuple[str, torch.nn.Parameter]] | None:
        """Set the groups to what the user made them, before this is wrapped anew. Return the names to use: those that
        are given, or that the parameters have.
        """
        if self._gradients.is_under_way:
            raise InvalidArgumentError(
                "DistributedOptimizer was given an optimizer whose gradients are being synchronised: call its step() "
                "or synchronize() before it is wrapped anew"
            )
        if self._gradients.momentum is not None:
            self._gradients.momentum.give_back()
        if named_parameters is not None:
            return named_parameters
        return [(name, parameter) for parameter, name in self._held_names().items()]

    # --- what a training script calls ---------------------------------------------------------------------------------

    @_disable_dynamo
    def synchronize(self) -> None:
        """Wait until every gradient is the reduced one; those that backward did not reach are submitted first, as
        zeros.

        `step()` does this itself. Call it to change gradients in between (clipping), and then step within
        `skip_synchronize()`. Raises what ended an operation (`casync.errors.HorovodInternalError`) once all have ended.
        """
        if self._gradients.is_distributed:
            try:
                self._gradients.prepare()
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

    @_disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronise the gradients, then step. Gradients that `closure` computes are synchronised after each call of
        it.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(_STEP_AFTER_SYNCHRONIZE, stacklevel=4)  # past what keeps torch.compile out
            if closure is None or self._handles:
                self.synchronize()
            if closure is not None:
                closure = self._synchronizing(closure)
        self._synchronized = False
        if self._gradients.is_distributed:
            self._gradients.check()
            self._check_replicas()
        if self._gradients.momentum is not None:
            self._gradients.momentum.take()
        self._note_step()
        self._gradients.applied()
        return super().step(closure) if closure is not None else super().step()

    # torch runs step hooks around each class's step that is not marked. The wrapped one's runs them, with the mean.
    step.hooked = True  # type: ignore[attr-defined]

    def _note_step(self) -> None:
        """Note the step in the wrapped optimizer too: a scheduler made before the wrapping asks that one."""
        for wrapped in self._wraps:
            if (optimizer := wrapped()) is not None:
                optimizer._opt_called = True

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Answer `GradScaler.step`, which asks this first. Refuse here what would go wrong with its gradients."""
        if self._gradients.is_distributed:
            if self._handles:
                raise InvalidArgumentError(_SCALER_TOO_EARLY)
            self._loss_scale.check("DistributedOptimizer")
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    def _check_replicas(self) -> None:
        self._replicas.step({entry.name: entry.parameter.detach() for entry in self._gradients.entries.values()})

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False  # by us, not by the program
            self._gradients.applied()  # by the optimizer, which asked for them
            return loss

        return run

    @_disable_dynamo
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Reset gradients. `CallOrderError` between `backward()` and `step()`, when they are being synchronised."""
        if self._handles:
            raise CallOrderError(_ZEROED_TOO_EARLY)
        super().zero_grad(*args, **kwargs)

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes accumulate locally before a gradient is synchronised."""
        return self._gradients.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self._gradients.passes = positive(passes)

    @contextlib.contextmanager
    def _without_synchronizing(self) -> Iterator[None]:
        """Within it gradients are this rank's own. What codecs held back of them is dropped. Entered and left between
        steps.
        """
        self._gradients.stop()
        try:
            yield
        finally:
            self._gradients.go_on()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Have `passes` backward passes accumulate locally, from now on, before a gradient is synchronised."""
        self._gradients.passes = positive(passes)
        self._gradients.start_anew()

    def set_compression(self, compression: CompressionLike) -> None:
        """Have another codec, or other codecs by name, from the next step on. The argument is that of
        `DistributedOptimizer`.

        Call it between steps, on all ranks before the same step; ranks that differ get a `MismatchError` in that step.
        A gradient whose codec changes goes uncompressed once, with all that was held back of it, so nothing is lost.
        Not from or to a codec that takes over the optimizer's momentum (dgc): `NotAvailableError`.
        """
        if self._gradients.is_under_way:
            raise CallOrderError(_BETWEEN_STEPS.format("set_compression()"))
        rules, _ = rules_and_topology(compression, None)
        settings = self._casync.with_rules(rules)
        if self._casync.takes_momentum or settings.takes_momentum:
            raise NotAvailableError(
                "set_compression() cannot change from or to a codec that takes over the optimizer's momentum (dgc). "
                "Call flush_residuals(), make one step within skip_synchronize(), and wrap the optimizer anew, as "
                "DistributedOptimizer(optimizer, compression=...)"
            )
        codecs.check_rules(rules, shapes_of(self._held_names()), may_warn=default.session().rank == 0)
        self._casync = settings
        self._loss_scale.set_rules(rules)
        self._gradients.set_settings(settings)

    def flush_residuals(self) -> None:
        """Make every gradient the mean over the ranks of what codecs have held back of it, with `op=Sum` their sum,
        uncompressed; nothing is pending after that. Parameters of which nothing was get zeros; frozen ones keep what
        they have.

        Collective, between steps; one more step within `skip_synchronize()` applies it. For the end of a training, or
        before it goes on without compression.
        """
        if self._gradients.is_under_way:
            raise CallOrderError(_BETWEEN_STEPS.format("flush_residuals()"))
        op = Sum if self._casync.op == Sum else Average
        for parameter, tensor in self._synchronized_tensors():
            if not parameter.requires_grad:
                continue
            owner = self._gradients.session()
            numel = parameter.numel() * (2 if parameter.is_complex() else 1)
            held = torch.from_numpy(state.take_pending(owner, tensor, numel)) * self._casync.predivide
            brought = allreduce_(held, name=f"flush.{tensor}", op=op, process_set=self._casync.process_set)
            if parameter.is_complex():
                brought = torch.view_as_complex(brought.view(-1, 2))
            parameter.grad = brought.view(parameter.shape).to(parameter)
        self._synchronized = True

    def _synchronized_tensors(self) -> list[tuple[torch.nn.Parameter, str]]:
        """The parameters that are synchronised, and what the ranks call their gradients; in a world of one all that
        are held, because a state of several ranks may have been loaded.
        """
        if self._gradients.is_distributed:
            return [(entry.parameter, entry.tensor) for entry in self._gradients.entries.values()]
        owner, prefix, names = self._gradients.session(), self._gradients.prefix, self._gradients.names
        return [
            (parameter, owner.tensor_name(OpKind.ALLREDUCE, prefix + names[parameter]) if parameter in names else "")
            for group in self.param_groups
            for parameter in group["params"]
        ]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state; with a lossy codec, this rank's residuals and codec state by parameter name under the
        key "casync".

        Local; call it between steps. Save one per rank, if training is to continue exactly.
        """
        shared = super().state_dict()
        if self._gradients.momentum is not None:
            shared = self._gradients.momentum.restored(shared)
        if not (self._gradients.is_distributed and (self._casync.keeps_something or self._gradients.holds_something)):
            return shared
        if self._gradients.is_under_way:
            raise CallOrderError(_BETWEEN_STEPS.format("optimizer.state_dict()"))
        return {**shared, state.STATE_KEY: self._gradients.saved_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` gave, on any rank. Residuals of another rank's checkpoint start at zero, with a
        warning.
        """
        self.load_shared_state_dict({key: value for key, value in state_dict.items() if key != state.STATE_KEY})
        saved = state_dict.get(state.STATE_KEY)
        is_kept = self._casync.keeps_something or saved is not None  # by the codec of another program, too
        if self._gradients.is_distributed and (is_kept or self._gradients.holds_something):
            self._gradients.load_saved_state(saved)

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """torch's `load_state_dict` ends here."""
        super().__setstate__(poured(self, state))

    # --- copies -------------------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy as torch's optimizers do: the groups, the state and the parameters. Local. The copy has the same
        settings and names, and nothing of what codecs keep. It takes part from its first step on.
        """
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        super(_DistributedOptimizer, copied).__setstate__(copy.deepcopy(self.__getstate__(), memo))
        copied._wraps = []
        groups = self._casync.groups
        if isinstance(groups, list):
            groups = [[copy.deepcopy(parameter, memo) for parameter in group] for group in groups]
        names = {copy.deepcopy(parameter, memo): name for parameter, name in self._held_names().items()}
        ours = self._gradients
        copied._distribute(replace(self._casync, groups=groups), self._loss_scale, ours.given_momentum, names)
        copied._gradients.copy_from(ours)
        return copied

    def _held_names(self) -> dict[torch.nn.Parameter, str]:
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        return {parameter: self._gradients.names[parameter] for parameter in held if parameter in self._gradients.names}

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotAvailableError(
            "a DistributedOptimizer cannot be pickled, nor copied by copy.copy(): it has hooks on the parameters of "
            "this process. Save optimizer.state_dict() and load it into an optimizer that is wrapped there; "
            "copy.deepcopy() works"
        )

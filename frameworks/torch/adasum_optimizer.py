"""The optimizer for DistributedOptimizer(op=Adasum), which reduces what each rank's own step would change."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, cast

import torch
from casync.errors import CallOrderError, NotAvailableError
from torch._compile import _disable_dynamo

from .gradients import Entry, Gradients
from .wrapped_optimizer import _DistributedOptimizer

__all__ = ["DeltaOptimizer"]


class Deltas(Gradients):
    """Changes by this rank's own step, in the place of gradients, which stay this rank's own. A parameter's hook makes
    and submits its change, and the parameter itself is as before until `apply`.
    """

    changed_text = (
        "the gradient of {} was changed after backward had made this rank's step from it (op=Adasum), too late to have "
        "an effect: change it in the parameter's register_hook()"
    )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deltas: dict[torch.nn.Parameter, torch.Tensor] = {}

    def start(self) -> None:
        """Start, and find out at once what Adasum does not take."""
        super().start()
        for entry in self.entries.values():
            if entry.session is None:
                self._register(self.session(), entry, entry.parameter)

    def submit_entry(self, entry: Entry, *, wake: bool = True) -> int:
        delta = self._step_alone(entry).contiguous()
        if (gradient := entry.parameter.grad) is not None:  # which that step may have changed
            entry.submitted, entry.version = gradient, gradient._version
        self._deltas[entry.parameter] = delta
        owner = self.session()
        if not self.is_registered(owner, entry, delta.dtype, delta.shape, delta.device):
            self._register(owner, entry, delta)
        handle: int = self.submit(owner, entry, delta, wake=wake)
        return handle

    def _step_alone(self, entry: Entry) -> torch.Tensor:
        """The optimizer's own step for one parameter; zeros where that has no gradient."""
        optimizer = cast(DeltaOptimizer, self._optimizer)
        parameter, groups = entry.parameter, optimizer.param_groups
        group = groups[entry.place.group]
        members = group["params"]
        with torch.no_grad():
            start = parameter.clone()
            try:
                group["params"], optimizer.param_groups = [parameter], [group]
                optimizer.step_locally()
                return parameter - start
            finally:
                group["params"], optimizer.param_groups = members, groups
                parameter.copy_(start)

    @torch.no_grad()
    def apply(self) -> None:
        for parameter, delta in self._deltas.items():
            parameter.add_(delta)
        self._deltas.clear()


class DeltaOptimizer(_DistributedOptimizer):
    """Optimizer state is each rank's own: it has seen the gradients of this rank alone."""

    _gradients: Deltas
    _gradients_of = Deltas

    def _adopt(self, optimizer: torch.optim.Optimizer, *others: Any) -> None:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise NotAvailableError(
                f"{type(optimizer).__name__} with op=Adasum: its step calls a closure, and here steps are made for "
                "one parameter after the other while backward runs; use another optimizer, or another op"
            )
        super()._adopt(optimizer, *others)

    def synchronize(self) -> None:
        """Does nothing: gradients are never reduced."""

    def skip_synchronize(self) -> NoReturn:
        raise CallOrderError(
            "Skipping synchronization is not supported when using Adasum optimizer. Its steps are made while backward "
            "runs, from gradients as they are: change these in a parameter's register_hook()."
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for what the ranks' own steps come to together, and change the parameters by that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        super().synchronize()
        self._check_replicas()
        self._note_step()
        self._gradients.apply()
        return loss

    # This adds the hooks of the whole step, which one parameter's step does not run. And torch.compile leaves it alone.
    step = _disable_dynamo(torch.optim.Optimizer.profile_hook_step(step))
    step.hooked = True  # type: ignore[attr-defined]

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """Refuse a GradScaler, which asks this before it steps. By then our steps are made, of scaled gradients."""
        raise NotAvailableError(
            "a GradScaler with op=Adasum: each rank's step is made while backward runs, before the scaler can take its "
            "factor off the gradients; use bfloat16, which needs no scaler, or another op"
        )

    def step_locally(self) -> None:
        """Run the wrapped optimizer's own step, without step hooks."""
        own = self._wrapped_class.step
        getattr(own, "__wrapped__", own)(self)

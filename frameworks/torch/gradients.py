"""An optimizer's gradients on their way: a hook on each parameter submits its gradient while backward still runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from casync import codecs
from casync.collectives import gradients
from casync.collectives.gradient_submits import OptimizerTerms
from casync.collectives.settings import Settings
from casync.collectives.sparse import SparsePending, wire_dtype
from casync.errors import InvalidArgumentError
from casync.session import Session

from . import sparse
from .loss_scale import LossScale
from .momentum import Momentum
from .parameter_names import numbered
from .tensors import TENSORS

__all__ = ["Entry", "Gradients"]


class Entry(gradients.Entry[torch.nn.Parameter]):
    """What is remembered of one parameter beside what all frameworks' adaptors do."""

    __slots__ = ("contiguous", "param_group", "sparse_dim", "submitted", "uncompressed", "version")

    def __init__(self, parameter: torch.nn.Parameter, name: str, param_group: int) -> None:
        super().__init__(parameter, name)
        self.param_group = param_group
        # A copy to synchronise, where the gradient itself is not contiguous, or is sparse and goes as a dense one.
        self.contiguous: torch.Tensor | None = None
        self.sparse_dim = 0  # of gradients that are sparse
        # The gradient that is under way, and how often it had been changed in place: torch counts that.
        self.submitted: torch.Tensor | None = None
        self.version = 0
        # Where a codec takes over momentum, whether this gradient has another codec.
        self.uncompressed: bool | None = None


class Gradients(gradients.Gradients[torch.nn.Parameter, torch.Tensor, Entry]):
    """Those of one optimizer. Nothing is submitted before `register_hooks`."""

    changed_text = (
        "the gradient of {} was changed after backward had submitted it, while it was being synchronised. Call "
        "optimizer.synchronize() before gradients are changed (clipped, unscaled, replaced), and then optimizer.step() "
        "within optimizer.skip_synchronize()"
    )

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        loss_scale: LossScale,
        momentum: float | None,
        names: dict[torch.nn.Parameter, str],
    ) -> None:
        super().__init__(TENSORS, settings)
        self._optimizer = optimizer
        self._names = names
        self._loss_scale = loss_scale
        # Of this step's gradients: asked for once, because on a GPU each question to a scaler waits for the device.
        self._scale: float | None = None
        self.momentum: Momentum | None = None
        if self.is_distributed and settings.takes_momentum:
            self.momentum = Momentum(optimizer, momentum)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def register_hooks(self) -> None:
        """Put hooks on the parameters that need gradients and have none: all at first, later those that were frozen or
        added.
        """
        hook = self._hook()
        new: list[Entry] = []
        for g, group in enumerate(self._optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self.entries:
                    new.append(Entry(parameter, self._names.setdefault(parameter, numbered(g, i)), g))
        self.add(new)
        for entry in new:
            entry.parameter.register_post_accumulate_grad_hook(hook)

    def _hook(self) -> Callable[[torch.Tensor], None]:
        """For every parameter. It holds none of them, and not this object, which does: torch's garbage collection does
        not see through hooks, and a parameter in its own hook would never be freed, nor the session.
        """
        weak = weakref.ref(self)

        def hook(parameter: torch.Tensor) -> None:
            gradients = weak()
            if gradients is not None:
                gradients.arrived(gradients.entries[parameter])  # type: ignore[index]

        return hook

    def prepare(self) -> None:
        """Before the end of a step: raises if another optimizer has taken the codec state; hooks what is new."""
        self.check()
        self.register_hooks()

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit_entry(self, entry: Entry, *, wake: bool = True) -> int | SparsePending[torch.Tensor]:
        gradient = entry.parameter.grad
        owner = self.session()
        if gradient is None:
            # Unused on this rank in this step, but perhaps used on another, which waits for ours.
            gradient = entry.parameter.grad = sparse.zeros_of(entry.parameter, entry.sparse_dim)
        entry.submitted, entry.version = gradient, gradient._version
        is_sparse = gradient.layout is not torch.strided
        if is_sparse:
            entry.sparse_dim = gradient.sparse_dim()
            settings = self.settings
            if not settings.sparse_as_dense:
                wire = wire_dtype(entry.tensor, self.codec_of(entry))
                return sparse.submit(gradient, entry.tensor, settings.op, settings.process_set, wire)
            gradient = gradient.to_dense()
        if not self.is_registered(owner, entry, gradient.dtype, gradient.shape, gradient.device):
            self._register(owner, entry, gradient)
        if self.momentum is not None or self._loss_scale.is_told:
            self.tell(owner, entry, self._terms(entry))
        if gradient.is_contiguous() and not is_sparse:
            entry.contiguous = None
        else:
            entry.contiguous = gradient = gradient.contiguous()
        if self.settings.predivide != 1.0:
            gradient.data.mul_(1.0 / self.settings.predivide)  # .data: that is no change of the program's
        return self.submit(owner, entry, gradient, wake=wake)

    def _register(self, owner: Session, entry: Entry, gradient: torch.Tensor) -> None:
        self.register(owner, entry, gradient, gradient.dtype, gradient.shape, gradient.device)
        entry.uncompressed = None

    def _terms(self, entry: Entry) -> OptimizerTerms:
        if self._scale is None:
            self._scale = self._loss_scale.now()
        terms = OptimizerTerms()
        if self.momentum is not None:
            self.momentum.take()
            terms = self.momentum.terms(entry.param_group)
        return terms._replace(loss_scale=self._scale)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait(self) -> Collection[torch.nn.Parameter]:
        """As of all adaptors; raises `InvalidArgumentError` too, if the program has changed a gradient meanwhile."""
        changed = self._changed()
        scale, self._scale = self._scale, None
        dense = super().wait()
        if changed is not None:
            raise InvalidArgumentError(self.changed_text.format(changed))
        with torch.no_grad():
            for parameter, entry in self.entries.items():
                if entry.contiguous is None or parameter.grad is None:
                    continue
                if parameter.grad.layout is torch.strided:
                    parameter.grad.copy_(entry.contiguous)
                else:
                    parameter.grad = entry.contiguous.to_sparse(entry.sparse_dim)
                entry.contiguous = None
            if self.settings.predivide != 1.0:
                for gradient in (parameter.grad for parameter in dense if parameter.grad is not None):
                    gradient.mul_(self.settings.predivide)
            if self.momentum is not None:
                self._apply_momentum(self.momentum, self._loss_scale.now() if scale is None else scale)
        return dense

    def set_sparse(self, parameter: torch.nn.Parameter, indices: torch.Tensor, values: torch.Tensor) -> None:
        parameter.grad = sparse.sparse_of(indices, values, parameter.shape)

    def _changed(self) -> str | None:
        """The first gradient that is not the one that was submitted any more."""
        changed = None
        for parameter, entry in self.entries.items():
            submitted, entry.submitted = entry.submitted, None
            gradient = parameter.grad
            if submitted is None or gradient is None:
                continue
            if gradient is not submitted or gradient._version != entry.version:
                changed = changed or entry.name
        return changed

    def _apply_momentum(self, momentum: Momentum, scale: float) -> None:
        """To gradients that another codec than the momentum's carried."""
        if any(entry.uncompressed is None for entry in self.entries.values()):
            plans = self.session().plans()
            for entry in self.entries.values():
                plan = plans.get(entry.tensor)  # sparse gradients have none
                entry.uncompressed = plan is None or not codecs.takes_momentum(plan.codec)
        for parameter, entry in self.entries.items():
            if entry.uncompressed:
                momentum.apply(parameter, entry.param_group, scale)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def saved_state(self) -> dict[str, Any]:
        """What codecs keep of these on this rank, by parameter name."""
        return self.state_dict(self.entries.values(), torch.from_numpy)

    def load_saved_state(self, saved: Mapping[str, Any] | None) -> None:
        """Put back what `saved_state` gave."""
        self.load_state_dict(self.entries.values(), saved, torch.Tensor.numpy)

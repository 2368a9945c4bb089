"""An optimizer's gradients on their way: a hook on each parameter submits its gradient while backward still runs."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from casync.codecs import specs as codecs
from casync.collectives import gradients
from casync.collectives.gradient_submits import Gradient, OptimizerSettings
from casync.collectives.settings import Settings
from casync.collectives.sparse_exchange import SparsePending, wire_dtype
from casync.config.rules import Shape
from casync.errors import InvalidArgumentError
from casync.session.session import Session
from casync.tensors.signature import Sum
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from . import sparse_tensors as sparse
from .loss_scale import LossScale
from .membership import Membership, Place
from .momentum import Momentum
from .ops import allreduce_
from .ownership import alive, other_owner, own
from .parameter_names import numbered, unused
from .tensors import TENSORS

__all__ = ["Entry", "Gradients"]

_LOG = logging.getLogger("casync")


class Entry(gradients.Entry[torch.nn.Parameter]):
    """The facts remembered of one parameter, beside those that all frameworks' adaptors remember."""

    __slots__ = ("contiguous", "hook", "place", "sparse_dim", "submitted", "uncompressed", "version")

    def __init__(self, parameter: torch.nn.Parameter, name: str, place: Place) -> None:
        super().__init__(parameter, name)
        self.place = place
        self.hook: RemovableHandle | None = None
        # A copy to synchronise, where the gradient itself is not contiguous, or is sparse and goes as a dense one.
        self.contiguous: torch.Tensor | None = None
        self.sparse_dim = 0  # of gradients that are sparse
        # The gradient that is under way, and how often it had been changed in place: torch counts that.
        self.submitted: torch.Tensor | None = None
        self.version = 0
        # Where a codec takes over momentum, whether this gradient has another codec.
        self.uncompressed: bool | None = None


class Gradients(gradients.Gradients[torch.nn.Parameter, torch.Tensor, Entry]):
    """The gradients of one optimizer. Nothing is submitted before `start`."""

    changed_text = (
        "the gradient of {} was changed after backward had submitted it, while it was being synchronised. Call "
        "optimizer.synchronize() before gradients are changed (clipped, unscaled, replaced), and then optimizer.step() "
        "within optimizer.skip_synchronize(). If the model is in DistributedDataParallel, that has changed it: take "
        "one of the two, DistributedOptimizer or DistributedDataParallel"
    )

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        loss_scale: LossScale,
        momentum: float | None,
        names: Mapping[torch.nn.Parameter, str],
    ) -> None:
        super().__init__(TENSORS, settings)
        self._optimizer_ref = weakref.ref(optimizer)  # which has this object
        self.names = WeakTensorKeyDictionary(names)
        """Names that the user gave, or that were made up; also of parameters that the optimizer does not hold."""
        self._membership = Membership()
        self._hook = self._make_hook()
        self._dead_hooks: list[RemovableHandle] = []
        self._without: list[torch.nn.Parameter] = []  # that are held and have no entry: they never needed a gradient
        self._has_left = False  # what was under way when it left the optimizer
        # The backward pass that was seen last, and whether there was one in this step.
        self._pass = -1
        self._has_begun = False
        self._is_retired = False
        self._loss_scale = loss_scale
        # This step's loss scale, asked for once, because on a GPU each question to a scaler waits for the device.
        self._scale: float | None = None
        self.given_momentum = momentum
        self.momentum: Momentum | None = None
        if self.is_distributed and settings.takes_momentum:
            self.momentum = Momentum(optimizer, momentum)

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return alive(self._optimizer_ref)

    # --- whose gradients these are ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Handle the gradients of what the optimizer holds, from now on."""
        self._refresh()

    def __del__(self) -> None:
        for entry in getattr(self, "entries", {}).values():
            self._drop_hook(entry)

    def copy_from(self, other: Gradients) -> None:
        """These are those of a copy of the other's optimizer. It may never be used, so it begins when it is."""
        self.passes = other.passes
        self._is_retired = True
        if self.momentum is not None and other.momentum is not None:
            self.momentum.copy_from(other.momentum)

    def holds(self, parameter: torch.Tensor) -> bool:
        return any(parameter is held for group in self._optimizer.param_groups for held in group["params"])

    def retire(self, parameter: torch.Tensor) -> None:
        """Another optimizer is given `parameter`: have no more hooks, unless this one is used again."""
        if self.is_under_way:
            raise InvalidArgumentError(
                f"the gradients of {self.names.get(parameter)} are being synchronised by another DistributedOptimizer: "
                "call its step() or synchronize() before another one is made for this parameter"
            )
        self.handles.clear()
        self.start_anew()
        self._is_retired = True
        for entry in self.entries.values():
            self._drop_hook(entry)

    def stop(self) -> None:
        """Synchronise nothing, until `go_on` is called."""
        self.is_distributed = False
        for entry in self.entries.values():
            self._drop_hook(entry)
        if self.holds_something and self.session().rank == 0:
            _LOG.warning(
                "what codecs have held back of the gradients is dropped, because they are not averaged any more: call "
                "flush_residuals() and step once within skip_synchronize() before that"
            )
        self.leave(list(self.entries.values()))
        self._without = list(self._membership.places)
        if self.momentum is not None:
            self.momentum.give_back()
            self.momentum = None

    def go_on(self) -> None:
        """Synchronise again what the optimizer holds."""
        self.is_distributed = True
        if self.settings.takes_momentum:
            self.momentum = Momentum(self._optimizer, self.given_momentum)
        self.start()

    def check(self) -> None:
        """Raise `InvalidArgumentError` if a later optimizer has one of the parameters, or of the names."""
        if self._is_retired:
            self._take_back()
        super().check()

    def _take_back(self) -> None:
        held = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if any(other_owner(parameter, self) for parameter in held):
            gc.collect()  # one that nobody holds any more is none
        for parameter in held:
            if other_owner(parameter, self) is not None:
                raise InvalidArgumentError(
                    f"parameter {self.names.get(parameter)} belongs to a DistributedOptimizer that was made later, and "
                    "this one is used too: their gradients are one. Use the later one alone, delete it, or give each "
                    "optimizer parameters of its own"
                )
        own(held, self)
        self._is_retired = False
        for entry in self.entries.values():
            self._put_hook(entry)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _make_hook(self) -> Callable[[torch.Tensor], None]:
        """Make the hook of every parameter. It holds none of them, and not this object, which does: torch's garbage
        collection does not see through hooks, and a parameter in its own hook would never be freed, nor the session.
        """
        weak = weakref.ref(self)

        def hook(parameter: torch.Tensor) -> None:
            gradients = weak()
            if gradients is not None:
                gradients.reached(parameter)

        return hook

    def _put_hook(self, entry: Entry) -> None:
        entry.hook = entry.parameter.register_post_accumulate_grad_hook(self._hook)

    def _drop_hook(self, entry: Entry) -> None:
        if entry.hook is not None:
            entry.hook.remove()
            entry.hook = None

    def reached(self, parameter: torch.Tensor) -> None:
        """Backward has accumulated the gradient of `parameter`."""
        task = torch._C._current_graph_task_id()
        if task != self._pass:
            self._pass = task
            self._begin()
        entry = self.entries.get(parameter)  # type: ignore[call-overload]
        if entry is not None:
            self.arrived(entry)

    def prepare(self) -> None:
        """Take what is new, before the end of a step. Raises if another optimizer has a parameter, or codec state."""
        self.check()
        if self._has_begun:
            self._refresh()
        else:
            self._begin()

    def _begin(self) -> None:
        """Begin a backward pass, or end a step without one: what requires a gradient now is synchronised."""
        self._refresh()
        if not self._has_begun:
            self.take_back()
        for entry in self.entries.values():
            was_wanted = self._has_begun and entry.is_wanted  # by an earlier backward pass of this step
            entry.is_wanted = was_wanted or entry.parameter.requires_grad
        self._has_begun = True

    def _refresh(self) -> None:
        """Take what the optimizer holds now, and forget what has left it."""
        before = self._membership.places
        left: dict[Place, str] = {}
        if self._membership.look(self._optimizer.param_groups):
            places = self._membership.places
            own([parameter for parameter in places if parameter not in before], self)
            left = self._forget_left()
            for parameter, entry in self.entries.items():
                entry.place = places.get(parameter, entry.place)
            self._without = [parameter for parameter in places if parameter not in self.entries]
        if any(parameter.requires_grad for parameter in self._without):
            self._take_new(before, left if self._membership.is_replaced else {})

    def _forget_left(self) -> dict[Place, str]:
        """Forget what the optimizer does not hold any more; the names, by place. What is under way goes after it."""
        left = [entry for parameter, entry in self.entries.items() if parameter not in self._membership.places]
        gone = [entry for entry in left if self.handles.get(entry.parameter) is None]
        self._has_left = len(gone) < len(left)
        self.leave(gone)
        # Not at once: this may run in one of these hooks, while torch goes through them.
        self._dead_hooks += [entry.hook for entry in gone if entry.hook is not None]
        return {entry.place: entry.name for entry in gone}

    def _take_new(self, before: Collection[torch.nn.Parameter], left: Mapping[Place, str]) -> None:
        """Take the parameters that are held and need a gradient. In the middle of a step, this step
        synchronises those that have one already, or that were not held when backward began.
        """
        new = [parameter for parameter in self._without if parameter.requires_grad]
        names = {name: parameter for parameter, name in self.names.items() if parameter in self._membership.places}
        names.update((entry.name, entry.parameter) for entry in self.entries.values())
        entries = []
        for parameter in new:
            place = self._membership.places[parameter]
            name = self.names.get(parameter) or left.get(place) or numbered(*place)
            self.names[parameter] = name = unused(name, parameter, names)
            entries.append(Entry(parameter, name, place))
        self.add(entries)
        for entry in entries:
            entry.is_wanted = entry.parameter not in before or entry.parameter.grad is not None
            self._put_hook(entry)
        self._without = [parameter for parameter in self._without if parameter not in self.entries]

    # --- submitting ---------------------------------------------------------------------------------------------------

    def shape_of(self, gradient: Gradient) -> Shape:
        assert isinstance(gradient, Entry), "all that this handles have one"
        parameter = gradient.parameter
        return torch.view_as_real(parameter).shape if parameter.is_complex() else parameter.shape

    def submit_entry(self, entry: Entry, *, wake: bool = True) -> int | SparsePending[torch.Tensor]:
        gradient = entry.parameter.grad
        owner = self.session()
        entry.is_zeros = gradient is None
        if gradient is None:
            # Unused on this rank in this step, but perhaps used on another, which waits for ours.
            gradient = entry.parameter.grad = sparse.zeros_of(entry.parameter, self._sparse_dim(entry))
        entry.submitted, entry.version = gradient, gradient._version
        is_sparse = gradient.layout is not torch.strided
        if is_sparse:
            entry.sparse_dim = gradient.sparse_dim()
            if not self.settings.sparse_as_dense:
                return self._submit_sparse(entry, gradient)
            gradient = gradient.to_dense()
        if gradient.is_contiguous() and not is_sparse and not gradient.is_conj():
            entry.contiguous = None
        else:
            entry.contiguous = gradient = gradient.resolve_conj().contiguous()
        if self.settings.predivide != 1.0:
            gradient.data.mul_(1.0 / self.settings.predivide)  # .data: that is no change of the program's
        if gradient.is_complex():
            gradient = torch.view_as_real(gradient)  # codecs see two numbers for each element
        if not self.is_registered(owner, entry, gradient.dtype, gradient.shape, gradient.device):
            self._register(owner, entry, gradient)
        if self.momentum is not None or self._loss_scale.is_told:
            self.tell(owner, entry, self._terms(entry))
        return self.submit(owner, entry, gradient, wake=wake)

    def _submit_sparse(self, entry: Entry, gradient: torch.Tensor) -> SparsePending[torch.Tensor]:
        wire, settings = wire_dtype(entry.tensor, self.codec_of(entry, gradient.shape)), self.settings
        return sparse.submit(gradient, entry.tensor, settings.op, settings.process_set, wire, meets=entry.tensor)

    def _sparse_dim(self, entry: Entry) -> int:
        """Return the sparse dimensions of zeros; SparseAdam takes no dense gradient."""
        return entry.sparse_dim or int(isinstance(self._optimizer, torch.optim.SparseAdam))

    def _register(self, owner: Session, entry: Entry, gradient: torch.Tensor) -> None:
        self.register(owner, entry, gradient, gradient.dtype, gradient.shape, gradient.device)
        entry.uncompressed = None

    def _terms(self, entry: Entry) -> OptimizerSettings:
        if self._scale is None:
            self._scale = self._loss_scale.now()
        terms = OptimizerSettings()
        if self.momentum is not None:
            self.momentum.take()
            terms = self.momentum.terms(entry.place.group)
        return terms._replace(loss_scale=self._scale)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait(self) -> Collection[torch.nn.Parameter]:
        """Wait as all adaptors do. Also raises `InvalidArgumentError` if the program changed a gradient meanwhile."""
        changed = self._changed()
        scale, self._scale = self._scale, None
        try:
            dense = super().wait()
        finally:
            self._has_begun = False
            self._end_hooks()
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
                self._apply_momentum(dense, self.momentum, self._loss_scale.now() if scale is None else scale)
        return dense

    def _end_hooks(self) -> None:
        """End the hooks of the parameters that have left."""
        if self._has_left:
            self._forget_left()
        for hook in self._dead_hooks:
            hook.remove()
        self._dead_hooks.clear()

    def settle(self, entry: Entry, pending: SparsePending[torch.Tensor] | None) -> None:
        """The sparse gradients come together, and the dense ones, if there is more than zeros. Their sum is sparse or
        dense alike on all ranks.
        """
        parameter, of = entry.parameter, self.settings.process_set
        gradient = parameter.grad
        assert gradient is not None
        has_dense = pending is None and not entry.is_zeros
        says = torch.tensor([has_dense, pending is not None, entry.sparse_dim if pending else 0], dtype=torch.int32)
        dense_ranks, sparse_ranks, dims = allreduce_(says, name=f"{entry.name}.layout", op=Sum, process_set=of).tolist()
        entry.sparse_dim, entry.contiguous = dims // sparse_ranks, None
        if pending is None:
            pending = self._submit_sparse(entry, sparse.zeros_of(parameter, entry.sparse_dim))
        else:
            pending.again()
        result = sparse.sparse_of(*pending.finish(), parameter.shape)
        if dense_ranks > 0:
            rest = (
                gradient.detach().clone(memory_format=torch.contiguous_format)
                if has_dense
                else torch.zeros_like(parameter)
            )
            rest = allreduce_(rest.detach(), name=f"{entry.name}.dense", op=self.settings.op, process_set=of)
            result = rest.mul_(self.settings.predivide) + result
        parameter.grad = result

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

    def _apply_momentum(self, dense: Collection[torch.nn.Parameter], momentum: Momentum, scale: float) -> None:
        """Apply momentum to gradients that another codec than the momentum's carried."""
        if any(entry.uncompressed is None for entry in self.entries.values()):
            plans = self.session().plans()
            for entry in self.entries.values():
                plan = plans.get(entry.tensor)  # sparse gradients have none
                entry.uncompressed = plan is None or not codecs.takes_momentum(plan.codec)
        for parameter, entry in self.entries.items():
            if entry.uncompressed:
                momentum.apply(parameter, entry.place.group, scale)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def saved_state(self) -> dict[str, Any]:
        """Return what codecs keep of these on this rank, by parameter name."""
        return self.state_dict(self.entries.values(), torch.from_numpy)

    def load_saved_state(self, saved: Mapping[str, Any] | None) -> None:
        """Put back what `saved_state` gave."""
        self.load_state_dict(self.entries.values(), saved, torch.Tensor.numpy)

"""An optimizer's gradients on their way: hooks submit them while backward still runs, `wait` has them back."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from casync import codecs
from casync.codec_states import Claim
from casync.default import session_of
from casync.errors import InvalidArgumentError
from casync.session import Session
from casync.terms import OpKind, Terms, tensor_name

from .momentum import Momentum
from .momentum import Terms as OptimizerTerms
from .ops import dtype_name
from .parameter_groups import Group, Groups
from .parameter_names import numbered
from .settings import Settings
from .sparse import SparseHandle, submit_gradient, take_all, zeros_of

__all__ = ["Entry", "Gradients"]

_TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)


class Entry:
    """What is remembered of one parameter, so that its hook has one submit to do."""

    __slots__ = (
        "contiguous", "delay", "dtype", "group", "name", "numel", "param_group", "parameter", "registration",
        "session", "sparse_dim", "submitted", "tensor", "terms", "uncompressed", "version",
    )  # fmt: skip

    def __init__(self, parameter: torch.nn.Parameter, param_group: int, name: str, tensor: str, delay: int) -> None:
        self.parameter = parameter
        self.param_group = param_group
        self.name = name  # the user's
        self.tensor = tensor  # the session's
        self.delay = delay  # backward passes until the gradient is ready
        self.group: Group | None = None  # whose gradients are submitted with this one
        # Of the gradient that was registered last; `session` is None before.
        self.session: Session | None = None
        self.registration = 0
        self.dtype: torch.dtype | None = None
        self.numel = -1
        # A copy to synchronise, where the gradient itself is not contiguous, or is sparse and goes as a dense one.
        self.contiguous: torch.Tensor | None = None
        self.sparse_dim = 0  # of gradients that are sparse
        # The gradient that is under way, and how often it had been changed in place: torch counts that.
        self.submitted: torch.Tensor | None = None
        self.version = 0
        # What the core was told last; where a codec takes over momentum, whether this gradient has another codec.
        self.terms: OptimizerTerms | None = None
        self.uncompressed: bool | None = None


class Gradients:
    """Those of one optimizer. Nothing is submitted before `register_hooks`."""

    changed_text = (
        "the gradient of {} was changed after backward had submitted it, while it was being synchronised. Call "
        "optimizer.synchronize() before gradients are changed (clipped, unscaled, replaced), and then optimizer.step() "
        "within optimizer.skip_synchronize()"
    )

    def __init__(
        self, optimizer: torch.optim.Optimizer, settings: Settings, names: dict[torch.nn.Parameter, str]
    ) -> None:
        self._optimizer = optimizer
        self._settings = settings
        self._names = names
        self.passes = settings.passes
        """Backward passes that add up locally; a change counts from the next `wait` on."""
        self.entries: dict[torch.nn.Parameter, Entry] = {}
        self.handles: dict[torch.nn.Parameter, int | SparseHandle | None] = {}
        """Of this step; None for a gradient that waits for further backward passes, or for its group."""
        self.is_distributed = settings.is_distributed
        self._loss_scale = settings.loss_scale
        # Of this step's gradients: asked for once, because on a GPU each question to a scaler waits for the device.
        self._scale: float | None = None
        self.momentum: Momentum | None = None
        if self.is_distributed and settings.takes_momentum:
            self.momentum = Momentum(optimizer, settings.momentum)
        self._claim = Claim() if settings.keeps_something else None
        self._groups = Groups(settings.groups)

    def session(self) -> Session:
        return session_of(self._settings.process_set)

    def start_anew(self) -> None:
        """Count backward passes from 0 again."""
        for entry in self.entries.values():
            entry.delay = self.passes
            if entry.group is not None:
                entry.group.ready = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a gradient has been submitted, and not been waited for."""
        return any(handle is not None for handle in self.handles.values())

    # --- hooks --------------------------------------------------------------------------------------------------------

    def register_hooks(self) -> None:
        """Put hooks on the parameters that need gradients and have none: all at first, later those that were frozen or
        added.
        """
        owner = self.session()
        hook = self._hook()
        new: list[Entry] = []
        for g, group in enumerate(self._optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if not parameter.requires_grad or parameter in self.entries:
                    continue
                name = self._names.setdefault(parameter, numbered(g, i))
                tensor = tensor_name(owner, OpKind.ALLREDUCE, name)
                entry = Entry(parameter, g, name, tensor, self.passes)
                self.entries[parameter] = entry
                new.append(entry)
                parameter.register_post_accumulate_grad_hook(hook)
        for entry, joined in zip(new, self._groups.join([entry.parameter for entry in new]), strict=True):
            entry.group = joined
        if new and self._claim is not None:
            owner.codec_states.give_to(self._claim, [entry.tensor for entry in new])

    def _hook(self) -> Callable[[torch.Tensor], None]:
        """For every parameter. It holds none of them, and not this object, which does: torch's garbage collection does
        not see through hooks, and a parameter in its own hook would never be freed, nor the session.
        """
        weak = weakref.ref(self)

        def hook(parameter: torch.Tensor) -> None:
            gradients = weak()
            if gradients is not None:
                gradients._arrived(gradients.entries[parameter])  # type: ignore[index]

        return hook

    def _arrived(self, entry: Entry) -> None:
        if entry.delay <= 0:
            raise AssertionError(_TOO_MANY_PASSES)
        entry.delay -= 1
        if entry.delay == 0 and entry.group is None:
            self.handles[entry.parameter] = self._submit(entry)
            return
        self.handles[entry.parameter] = None
        if entry.delay == 0 and entry.group is not None and entry.group.completed():
            self._submit_together(entry.group)

    # --- submitting ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before the end of a step: raises if another optimizer has taken the codec state; hooks what is new."""
        if self._claim is not None:
            self._claim.check()
        self.register_hooks()

    def submit_missing(self) -> None:
        """Those that backward did not reach, or not often enough; zeros where there is no gradient."""
        for parameter, entry in self.entries.items():
            if self.handles.get(parameter) is None:
                self.handles[parameter] = self._submit(entry)

    def _submit_together(self, group: Group) -> None:
        """The last one wakes the runtime, which so finds all of them."""
        for parameter in group.members:
            is_last = parameter is group.members[-1]
            self.handles[parameter] = self._submit(self.entries[parameter], wake=is_last)

    def _submit(self, entry: Entry, *, wake: bool = True) -> int | SparseHandle:
        gradient = entry.parameter.grad
        owner = self.session()
        if gradient is None:
            # Unused on this rank in this step, but perhaps used on another, which waits for ours.
            gradient = entry.parameter.grad = zeros_of(entry.parameter, entry.sparse_dim)
        entry.submitted, entry.version = gradient, gradient._version
        is_sparse = gradient.layout is not torch.strided
        if is_sparse:
            entry.sparse_dim = gradient.sparse_dim()
            if not self._settings.sparse_as_dense:
                settings = self._settings
                codec = codecs.codec_by_name(settings.rules, entry.name)
                return submit_gradient(gradient, entry.tensor, codec, settings.op, settings.process_set)
            gradient = gradient.to_dense()
        if (
            entry.session is not owner
            or gradient.dtype is not entry.dtype
            or gradient.numel() != entry.numel
            or not gradient.is_cpu
        ):
            self._register(owner, entry, gradient)
        if self.momentum is not None or self._loss_scale.is_told:
            self._tell_terms(owner, entry)
        if gradient.is_contiguous() and not is_sparse:
            entry.contiguous = None
        else:
            entry.contiguous = gradient = gradient.contiguous()
        if self._settings.predivide != 1.0:
            gradient.data.mul_(1.0 / self._settings.predivide)  # .data: that is no change of the program's
        pointer = gradient.data_ptr()
        return owner.submit(entry.registration, pointer, pointer, gradient, wake=wake)

    def _tell_terms(self, owner: Session, entry: Entry) -> None:
        if self._scale is None:
            self._scale = self._loss_scale.now()
        terms = OptimizerTerms(loss_scale=self._scale)
        if self.momentum is not None:
            self.momentum.take()
            terms = self.momentum.terms(entry.param_group)._replace(loss_scale=self._scale)
        if terms != entry.terms:
            owner.set_optimizer(entry.registration, *terms)
            entry.terms = terms

    def _register(self, owner: Session, entry: Entry, gradient: torch.Tensor) -> None:
        settings = self._settings
        terms = Terms(
            entry.tensor,
            OpKind.ALLREDUCE,
            dtype_name(gradient),
            gradient.shape,
            settings.op,
            0,
            1.0 / settings.predivide,
            settings.predivide,
            codecs.codec_by_name(settings.rules, entry.name),
            settings.topology,
        )
        entry.registration = terms.register(owner)
        entry.terms = entry.uncompressed = None
        entry.session = owner
        entry.dtype = gradient.dtype
        entry.numel = gradient.numel()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until all that were submitted are the reduced ones. Raises what ended one, once all have ended; and
        `InvalidArgumentError` if the program has changed one meanwhile.
        """
        changed = self._changed()
        dense = {p: handle for p, handle in self.handles.items() if isinstance(handle, int)}
        sparse = {p: handle for p, handle in self.handles.items() if isinstance(handle, SparseHandle)}
        try:
            self.session().synchronize_all(list(dense.values()))
        finally:
            scale, self._scale = self._scale, None
            self.handles.clear()
            self.start_anew()
            take_all(sparse)
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
            if self._settings.predivide != 1.0:
                for gradient in (parameter.grad for parameter in dense if parameter.grad is not None):
                    gradient.mul_(self._settings.predivide)
            if self.momentum is not None:
                self._apply_momentum(self.momentum, self._loss_scale.now() if scale is None else scale)

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

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
from casync import adaptor, state
from casync.adaptor import GLOBAL_PROCESS_SET as global_process_set
from casync.adaptor import Average, OpKind, Terms, session_of, tensor_name
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.session import Session

from .compression import Compression
from .momentum import Momentum
from .momentum import Terms as OptimizerTerms
from .ops import allreduce_, dtype_name
from .replicas import Replicas
from .sparse import SparseHandle, submit_gradient, take_all, zeros_of

__all__ = ["DistributedOptimizer"]

_TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)
_ZEROED_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). This can "
    "cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)


class _Parameter:
    """What is remembered of one parameter, so that its hook has one submit to do."""

    __slots__ = (
        "contiguous", "delay", "dtype", "group", "name", "numel", "parameter", "registration", "session",
        "sparse_dim", "tensor", "terms", "uncompressed",
    )  # fmt: skip

    def __init__(self, parameter: torch.nn.Parameter, group: int, name: str, tensor: str, delay: int) -> None:
        self.parameter = parameter
        self.group = group
        self.name = name  # the user's
        self.tensor = tensor  # the session's
        self.delay = delay  # backward passes until the gradient is submitted
        # Of the gradient that was registered last; `session` is None before.
        self.session: Session | None = None
        self.registration = 0
        self.dtype: torch.dtype | None = None
        self.numel = -1
        # A copy to synchronise, where the gradient itself is not contiguous, or is sparse and goes as a dense one.
        self.contiguous: torch.Tensor | None = None
        self.sparse_dim = 0  # of gradients that are sparse
        # Where a codec takes over momentum: what the core was told last, and whether this gradient has another codec.
        self.terms: OptimizerTerms | None = None
        self.uncompressed: bool | None = None


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that `DistributedOptimizer` adds in front of the wrapped optimizer's class."""

    # Made by `_adopt` instead of __init__: the wrapped optimizer has run its own already, and keeps its state.
    _casync: _Settings
    _entries: dict[torch.nn.Parameter, _Parameter]
    _handles: dict[torch.nn.Parameter, int | SparseHandle | None]
    _parameter_names: dict[torch.nn.Parameter, str]

    def _adopt(
        self, optimizer: torch.optim.Optimizer, settings: _Settings, names: dict[torch.nn.Parameter, str]
    ) -> None:
        # A scheduler made before wraps `step` on the instance; kept, it would bypass ours.
        self.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k not in ("step", "zero_grad")})
        self._casync = settings
        self._entries = {}
        # Handles of this step's gradients; None for one that waits for further backward passes.
        self._handles = {}
        self._parameter_names = names
        self.backward_passes_per_step = settings.passes
        self.op = settings.op
        self._synchronized = False
        self._should_synchronize = True
        self._is_distributed = bool(settings.process_set.included()) and self._session().size > 1
        self._claim = state.Claim() if settings.keeps_state else None
        self._momentum = Momentum(self, settings.momentum) if self._is_distributed and settings.takes_momentum else None
        self._replicas = Replicas(settings.process_set)
        if self._is_distributed:
            self._register_hooks()

    def _session(self) -> Session:
        return session_of(self._casync.process_set)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _register_hooks(self) -> None:
        """Put hooks on the parameters that need gradients and have none: all at first, later those that were frozen or
        added.
        """
        owner = self._session()
        new = []
        for g, group in enumerate(self.param_groups):
            for i, parameter in enumerate(group["params"]):
                if not parameter.requires_grad or parameter in self._entries:
                    continue
                name = self._parameter_names.setdefault(parameter, _unnamed(g, i))
                tensor = tensor_name(owner, OpKind.ALLREDUCE, name)
                entry = _Parameter(parameter, g, name, tensor, self.backward_passes_per_step)
                self._entries[parameter] = entry
                new.append(tensor)
                parameter.register_post_accumulate_grad_hook(self._hook_of(entry))
        if new and self._claim is not None:
            self._claim.take(owner, new)

    def _hook_of(self, entry: _Parameter) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if entry.delay <= 0:
                raise AssertionError(_TOO_MANY_PASSES)
            entry.delay -= 1
            self._handles[entry.parameter] = None if entry.delay else self._submit(entry)

        return hook

    def _submit(self, entry: _Parameter) -> int | SparseHandle:
        gradient = entry.parameter.grad
        owner = self._session()
        if gradient is None:
            # Unused on this rank in this step, but perhaps used on another, which waits for ours.
            gradient = entry.parameter.grad = zeros_of(entry.parameter, entry.sparse_dim)
        is_sparse = gradient.layout is not torch.strided
        if is_sparse:
            entry.sparse_dim = gradient.sparse_dim()
            if not self._casync.sparse_as_dense:
                settings = self._casync
                codec = adaptor.codec_by_name(settings.rules, entry.name)
                return submit_gradient(gradient, entry.tensor, codec, settings.op, settings.process_set)
            gradient = gradient.to_dense()
        if (
            entry.session is not owner
            or gradient.dtype is not entry.dtype
            or gradient.numel() != entry.numel
            or not gradient.is_cpu
        ):
            self._register(owner, entry, gradient)
        if self._momentum is not None:
            self._tell_momentum(owner, self._momentum, entry)
        if gradient.is_contiguous() and not is_sparse:
            entry.contiguous = None
        else:
            entry.contiguous = gradient = gradient.contiguous()
        pointer = gradient.data_ptr()
        return owner.submit(entry.registration, pointer, pointer, gradient)

    @staticmethod
    def _tell_momentum(owner: Session, momentum: Momentum, entry: _Parameter) -> None:
        momentum.take()
        terms = momentum.terms(entry.group)
        if terms != entry.terms:
            owner.core.set_optimizer(entry.registration, *terms)
            entry.terms = terms

    def _register(self, owner: Session, entry: _Parameter, gradient: torch.Tensor) -> None:
        settings = self._casync
        terms = Terms(
            entry.tensor,
            OpKind.ALLREDUCE,
            dtype_name(gradient),
            gradient.shape,
            settings.op,
            0,
            1.0 / settings.predivide,
            settings.predivide,
            adaptor.codec_by_name(settings.rules, entry.name),
            settings.topology,
        )
        entry.registration = terms.register(owner)
        entry.terms = entry.uncompressed = None
        entry.session = owner
        entry.dtype = gradient.dtype
        entry.numel = gradient.numel()

    # --- what a training script calls ---------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until every gradient is the reduced one; those that backward did not reach are submitted first, as
        zeros.

        `step()` does this itself. Call it to change gradients in between (clipping), and then step within
        `skip_synchronize()`. Raises what ended an operation (`casync.errors.HorovodInternalError`) once all have ended.
        """
        if self._is_distributed:
            if self._claim is not None:
                self._claim.check()
            self._register_hooks()
            try:
                for parameter, entry in self._entries.items():
                    if self._handles.get(parameter) is None:
                        self._handles[parameter] = self._submit(entry)
            finally:
                # Also when a submit failed: what was submitted must end before the gradients are anybody's again.
                self._wait()
        self._synchronized = True

    def _wait(self) -> None:
        handles = [handle for handle in self._handles.values() if isinstance(handle, int)]
        sparse = {p: handle for p, handle in self._handles.items() if isinstance(handle, SparseHandle)}
        try:
            self._session().synchronize_all(handles)
        finally:
            self._reset()
            take_all(sparse)
        with torch.no_grad():
            for parameter, entry in self._entries.items():
                if entry.contiguous is None or parameter.grad is None:
                    continue
                if parameter.grad.layout is torch.strided:
                    parameter.grad.copy_(entry.contiguous)
                else:
                    parameter.grad = entry.contiguous.to_sparse(entry.sparse_dim)
                entry.contiguous = None
            if self._momentum is not None:
                self._apply_momentum(self._momentum)

    def _apply_momentum(self, momentum: Momentum) -> None:
        """To gradients that another codec than the momentum's carried."""
        if any(entry.uncompressed is None for entry in self._entries.values()):
            plans = self._session().plans()
            for entry in self._entries.values():
                plan = plans.get(entry.tensor)  # sparse gradients have none
                entry.uncompressed = plan is None or not adaptor.takes_momentum(plan.codec)
        for parameter, entry in self._entries.items():
            if entry.uncompressed:
                momentum.apply(parameter, entry.group)

    def _reset(self) -> None:
        self._handles.clear()
        for entry in self._entries.values():
            entry.delay = self.backward_passes_per_step

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step()` does not synchronise: for after an explicit `synchronize()`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
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
        if self._is_distributed:
            self._replicas.step(self._entries.values())
        if self._momentum is not None:
            self._momentum.take()
        return super().step(closure) if closure is not None else super().step()

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return run

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Reset gradients. AssertionError between `backward()` and `step()`, when they are being synchronised."""
        if self._handles:
            raise AssertionError(_ZEROED_TOO_EARLY)
        super().zero_grad(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on, `passes` backward passes accumulate locally before a gradient is synchronised."""
        self.backward_passes_per_step = _positive(passes)
        for entry in self._entries.values():
            entry.delay = passes

    def flush_residuals(self) -> None:
        """Make every gradient the mean over the ranks of what codecs have held back of it, uncompressed; nothing is
        pending after that. Parameters of which nothing was get zeros.

        Collective, between steps; one more step within `skip_synchronize()` applies it. For the end of a training, or
        before it goes on without compression.
        """
        if any(handle is not None for handle in self._handles.values()):
            raise AssertionError("flush_residuals() was called after loss.backward() but before optimizer.step()")
        for entry in self._entries.values():
            held = torch.from_numpy(state.take_pending(self._session(), entry.tensor, entry.parameter.numel()))
            name = f"flush.{entry.tensor}"
            mean = allreduce_(held, name=name, op=Average, process_set=self._casync.process_set)
            entry.parameter.grad = mean.view(entry.parameter.shape).to(entry.parameter.dtype)
        self._synchronized = True

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, str]:
        return {entry.name: entry.tensor for entry in self._entries.values()}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state; with a lossy codec, this rank's residuals and codec state by parameter name under the
        key "casync".

        Local; call it between steps. Save one per rank, if training is to continue exactly.
        """
        shared = super().state_dict()
        if self._momentum is not None:
            shared = self._momentum.restored(shared)
        if not (self._is_distributed and self._casync.keeps_state):
            return shared
        if any(handle is not None for handle in self._handles.values()):
            raise AssertionError("optimizer.state_dict() was called after loss.backward() but before optimizer.step()")
        own = state.collect(self._session(), self._tensors())
        return {**shared, state.STATE_KEY: state.converted(own, torch.from_numpy)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Load what `state_dict()` gave, on any rank. Residuals of another rank's checkpoint start at zero, with a
        warning.
        """
        self.load_shared_state_dict({key: value for key, value in state_dict.items() if key != state.STATE_KEY})
        if self._is_distributed and self._casync.keeps_state:
            own = state_dict.get(state.STATE_KEY)
            if own is not None:
                own = state.converted(own, torch.Tensor.numpy)
            state.restore(self._session(), self._tensors(), own)

    def load_shared_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what all ranks share, and leave the residuals as they are. Waits for gradients that are being
        synchronised.
        """
        if self._handles:
            self._wait()
        super().load_state_dict(state_dict)
        if self._momentum is not None:
            self._momentum.take()
        self._synchronized = False
        self._should_synchronize = True


class _Settings:
    """How the gradients of one optimizer are synchronised."""

    def __init__(
        self, owner: Session, compression: Any, topology: str | None, op: int, predivide: float, passes: int,
        momentum: float | None, sparse_as_dense: bool, process_set: Any,
    ) -> None:  # fmt: skip
        # Compression.none is the default argument, so it stands for "not said"; the string says it.
        given = None if compression is Compression.none else compression
        self.rules = adaptor.rules_of(owner.config.compression if given is None else given)
        self.topology = owner.config.topology if topology is None else topology
        self.op = op
        self.predivide = predivide
        self.passes = passes
        self.momentum = momentum
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set

    @property
    def takes_momentum(self) -> bool:
        """Whether some codec takes over the optimizer's momentum."""
        return any(adaptor.takes_momentum(codec) for _, codec in self.rules.pairs)

    @property
    def keeps_state(self) -> bool:
        """Whether some codec may keep residuals."""
        return any(codec != "none" for _, codec in self.rules.pairs)


def _positive(passes: int) -> int:
    if passes <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    return passes


def _unnamed(group: int, index: int) -> str:
    return f"allreduce.noname.{group}.{index}"


def _names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> dict[torch.nn.Parameter, str]:
    """Parameter -> name, checked; numbered if the user gave none."""
    named = [] if named_parameters is None else list(named_parameters)
    if not all(isinstance(item, tuple) and len(item) == 2 for item in named):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in named]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgumentError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    found = {parameter: name for name, parameter in named}
    if not named:
        groups = enumerate(optimizer.param_groups)
        return {p: _unnamed(g, i) for g, group in groups for i, p in enumerate(group["params"])}
    unnamed = [p for group in optimizer.param_groups for p in group["params"] if p not in found]
    if unnamed:
        raise InvalidArgumentError(
            "named_parameters was specified, but one or more model parameters were not named. Shapes of those: "
            f"{', '.join(str(tuple(p.shape)) for p in unnamed)}"
        )
    return found


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = global_process_set,
    *,
    topology: str | None = None,
    momentum: float | None = None,
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
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it after: with
            Average.
        num_groups, groups: not there yet; any value but the default is an error.
        sparse_as_dense: sparse gradients (of `Embedding(sparse=True)`) travel as dense tensors, with the codec that
            their name has. False: ranks exchange the elements that there are, uncompressed or in 16 bits, with Average
            or Sum. On all ranks a gradient must be sparse from the first step in which it is one anywhere.
        process_set: the ranks whose gradients are reduced together. On other ranks nothing is: the optimizer steps with
            their own.
        topology: "auto", "direct", "ps", "ring" or "two_level"; None takes `Config.topology`.
        momentum: for codecs that take over the optimizer's momentum (dgc). None takes SGD's, group by group, and
            switches it off there; any other optimizer needs a number, 0 if it has none to take over.

    `init()` comes first. Call `step()` and the rest on one thread; hooks run on the thread that runs backward.
    """
    _positive(backward_passes_per_step)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0 or groups is not None:
        raise NotAvailableError(
            "num_groups and groups are not there yet; leave them out: small gradients are batched anyway"
        )
    names = _names_of(optimizer, named_parameters)
    owner = adaptor.session()
    predivide = gradient_predivide_factor
    settings = _Settings(
        owner, compression, topology, adaptor.resolve_op(op, None), predivide, backward_passes_per_step, momentum,
        sparse_as_dense, adaptor.checked(process_set),
    )  # fmt: skip
    held = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    adaptor.check_rules(owner, settings.rules, held)
    original = type(optimizer)
    cls = type(
        original.__name__, (_DistributedOptimizer, original), {"__module__": __name__, "__doc__": original.__doc__}
    )
    distributed = cls.__new__(cls)
    distributed._adopt(optimizer, settings, names)
    return distributed

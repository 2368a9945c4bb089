"""How a gradient is submitted under its parameter's name, by an optimizer or by a hook of the framework's own."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

from casync.checkpoint import optimizer as state
from casync.codecs import specs as codecs
from casync.collectives.codec_watch import CodecWatch
from casync.collectives.settings import Settings
from casync.config.rules import Shape
from casync.errors import InvalidArgumentError
from casync.session.codec_states import StateOwner
from casync.session.completion_group import CompletionGroup
from casync.session.default import session_of
from casync.session.session import Session
from casync.tensors.adaptor import T, Tensors, about
from casync.tensors.signature import OpKind, OpSignature

__all__ = ["Gradient", "GradientSubmits", "OptimizerSettings"]


class OptimizerSettings(NamedTuple):
    """How a gradient will be used, as the core is told: see `Session.set_optimizer`."""

    lr: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    loss_scale: float = 1.0


class Gradient:
    """The facts remembered about one parameter's gradient, so that its hook has one submit to do."""

    __slots__ = ("asked", "device", "dtype", "name", "priority", "registration", "session", "shape", "tensor", "terms")

    def __init__(self, name: str) -> None:
        self.name = name  # the user's
        self.tensor = ""  # the session's, once it is taken
        self.priority = 0
        # The fields below are of the last registration; `session` is None before the first.
        self.session: Session | None = None
        self.registration = 0
        self.asked: OpSignature | None = None  # the terms of that registration
        self.dtype: object = None  # the framework's
        self.shape: Sequence[int] = ()
        self.device: object = None
        self.terms: OptimizerSettings | None = None  # what the core was told last


class _Kept(NamedTuple):
    residual: Any
    state: Any


class GradientSubmits(Generic[T]):
    """Submits the gradients of one optimizer or DDP hook, and owns their codec state."""

    def __init__(self, tensors: Tensors[T], settings: Settings, always_claims: bool = False, prefix: str = "") -> None:
        """`prefix` begins the names under which ranks meet; the user's names and the rules do not have it."""
        self.tensors = tensors
        self.settings = settings
        self.prefix = prefix
        self.by_name: dict[str, Gradient] = {}
        """The gradients that `know` was told of, by the user's names for them."""
        self._by_tensor: dict[str, Gradient] = {}
        weak = weakref.ref(self)  # the session, which has the claim, must not keep what this has

        def changed(tensor: str) -> None:
            if (submits := weak()) is not None:
                submits._codec_changed(tensor)

        self.claim = StateOwner(always_claims or settings.keeps_something, changed)
        self.has_kept = settings.keeps_something
        """Whether something was ever kept of a gradient."""
        self._sent_whole: dict[str, _Kept] = {}  # what was kept of those that went uncompressed in this step
        self.watch: CodecWatch[T] | None = None
        if settings.monitor is not None and settings.is_distributed:
            self.watch = CodecWatch(tensors, settings.monitor)

    def session(self) -> Session:
        """The session over the ranks whose gradients these are."""
        return session_of(self.settings.process_set)

    def take(self, gradients: Sequence[Gradient]) -> None:
        """Handle these gradients, which are new, from now on."""
        owner = self.session()
        for gradient in gradients:
            gradient.tensor = owner.tensor_name(OpKind.ALLREDUCE, self.prefix + gradient.name)
            self._by_tensor[gradient.tensor] = gradient
        if gradients:
            owner.codec_states.give_to(self.claim, [gradient.tensor for gradient in gradients])
            if self.watch is not None:
                self.watch.start(owner, gradients[0].tensor)

    def give_back(self, gradients: Sequence[Gradient]) -> None:
        """Handle these gradients, which are not under way, no more; nothing is kept of them."""
        if gradients:
            self.session().codec_states.take_from(self.claim, [gradient.tensor for gradient in gradients])
        for gradient in gradients:
            self._by_tensor.pop(gradient.tensor, None)

    def know(self, names: Iterable[str]) -> None:
        """Handle the gradients of these names from now on; names that are known already change nothing."""
        new = [Gradient(name) for name in dict.fromkeys(names) if name not in self.by_name]
        self.take(new)
        self.by_name.update((gradient.name, gradient) for gradient in new)

    def check(self) -> None:
        """Raise `InvalidArgumentError` if another optimizer or hook has taken one of the names."""
        self.claim.check()

    def codec_of(self, gradient: Gradient, shape: Sequence[int]) -> str:
        """Return the codec that the rules have for the gradient, which has this shape."""
        return codecs.codec_by_name(self.settings.rules, gradient.name, shape)

    def set_settings(self, settings: Settings) -> None:
        """Have the codecs of `settings` from the next step on, on all ranks alike. Between steps.

        A gradient whose codec is another one goes uncompressed in that step, with all that was held back of it, and has
        no fallback any more.
        """
        before, self.settings = self.settings, settings
        is_first = settings.keeps_something and not self.claim.keeps
        self.claim.keeps = self.claim.keeps or settings.keeps_something
        self.has_kept = self.has_kept or settings.keeps_something
        if not self._by_tensor:
            return
        owner = self.session()
        if is_first:
            owner.codec_states.give_to(self.claim, self._by_tensor.keys())
        for gradient in self._by_tensor.values():
            shape = self.shape_of(gradient)
            if shape is None:
                continue
            codec = codecs.codec_by_name(before.rules, gradient.name, shape)
            if codecs.are_same(codec, self.codec_of(gradient, shape)):
                continue
            gradient.session = None
            owner.codec_states.end_fallbacks([gradient.tensor])
            if codecs.keeps_state(codec):
                owner.codec_states.send_all([gradient.tensor])
            if self.watch is not None:
                self.watch.forget(owner, gradient.tensor)

    def shape_of(self, gradient: Gradient) -> Shape:
        """The shape that rules see; None: it is not known before the first step."""
        return None if gradient.asked is None else gradient.asked.shape

    def _codec_changed(self, tensor: str) -> None:
        """Have the gradient registered anew before it is submitted the next time."""
        if tensor in self._by_tensor:
            self._by_tensor[tensor].session = None

    def is_registered(
        self, owner: Session, gradient: Gradient, dtype: object, shape: Sequence[int], device: object
    ) -> bool:
        """Whether the gradient was registered with this session, and with the dtype, shape and device it has now."""
        is_same = gradient.session is owner and gradient.dtype == dtype and gradient.shape == shape
        return is_same and gradient.device == device

    def register(
        self, owner: Session, gradient: Gradient, values: T, dtype: object, shape: Sequence[int], device: object
    ) -> None:
        """Give the core the gradient's terms. `dtype`, `shape` and `device` are the framework's own, to be compared the
        next time.
        """
        settings = self.settings
        with about(gradient.name):
            values = self.tensors.admit(values)
            in_core = self.tensors.dtype(values)
        extents = self.tensors.shape(values)
        kept, tensor = owner.codec_states, gradient.tensor
        sends_all = kept.take_unsent(tensor)
        if sends_all:
            self._sent_whole[tensor] = _Kept(
                kept.residual(tensor) if tensor in kept.residual_names() else None,
                kept.state(tensor) if tensor in kept.state_names() else None,
            )
        else:
            self._sent_whole.pop(tensor, None)  # of an earlier step
        codec = (
            "none"
            if sends_all
            else kept.fallbacks.get(tensor)
            or codecs.from_numel(
                self.codec_of(gradient, extents), math.prod(extents), settings.min_numel, owner.config.min_numel
            )
        )
        terms = OpSignature(
            gradient.tensor,
            OpKind.ALLREDUCE,
            in_core,
            extents,
            settings.op,
            0,
            1.0 / settings.predivide,
            settings.predivide,
            codec,
            settings.topology,
            self.tensors.device(values) is not None,
            gradient.priority,
        )
        gradient.registration = owner.register(terms)
        gradient.asked = terms
        gradient.terms = None
        gradient.dtype, gradient.shape, gradient.device = dtype, shape, device
        gradient.session = None if sends_all else owner  # which is registered with another codec the next time

    def goes_whole(self, gradient: Gradient) -> bool:
        """Whether the gradient, which is registered, goes uncompressed in this step, with what was held back of it."""
        return gradient.tensor in self._sent_whole

    def applied(self) -> None:
        """The program has used the gradients of the last step."""
        self._sent_whole.clear()

    def take_back(self) -> None:
        """A step begins. If the program did not use the gradients of the last one, as after an overflow, those that
        went uncompressed in it go so again, with all that had been held back of them. On all ranks alike.
        """
        if not self._sent_whole:
            return
        kept = self.session().codec_states
        for tensor, before in self._sent_whole.items():
            if before.residual is not None:
                kept.set_residual(tensor, before.residual)
            if before.state is not None:
                kept.set_state(tensor, before.state)
        kept.send_all(self._sent_whole)
        self._sent_whole.clear()

    def tell(self, owner: Session, gradient: Gradient, terms: OptimizerSettings) -> None:
        """Tell the core how a registered gradient will be used, if that is news."""
        if terms != gradient.terms:
            try:
                owner.set_optimizer(gradient.registration, *terms)
            except InvalidArgumentError:
                self._register_anew(owner, gradient)
                owner.set_optimizer(gradient.registration, *terms)
            gradient.terms = terms

    def _register_anew(self, owner: Session, gradient: Gradient) -> None:
        """The core has refused the gradient's registration. It forgets what was not used while many others were, say
        the gradients of an optimizer that rested; if that is not why, raise what it raised.
        """
        if gradient.asked is None or owner.knows(gradient.registration):
            raise
        gradient.registration = owner.register(gradient.asked)
        if gradient.terms is not None:
            owner.set_optimizer(gradient.registration, *gradient.terms)

    def submit(self, owner: Session, gradient: Gradient, values: T, *, wake: bool = True) -> int:
        """Submit a registered gradient, which is contiguous, in place; its handle."""
        if self.watch is not None:
            self._show(self.watch, owner, gradient, values)
        address, device = self.tensors.address(values), self.tensors.device(values)
        try:
            return owner.submit(gradient.registration, address, address, values, wake=wake, device=device)
        except InvalidArgumentError:
            self._register_anew(owner, gradient)
            return owner.submit(gradient.registration, address, address, values, wake=wake, device=device)

    def submit_to(
        self, completion: CompletionGroup, owner: Session, gradient: Gradient, values: T, *, wake: bool
    ) -> None:
        """Submit as above, with a completion in place of a handle. `wake` false: another one follows at once."""
        if self.watch is not None:
            self._show(self.watch, owner, gradient, values)
        address, device = self.tensors.address(values), self.tensors.device(values)
        try:
            number = gradient.registration
            owner.submit(number, address, address, values, wake=wake, completion=completion, device=device)
        except InvalidArgumentError:
            self._register_anew(owner, gradient)
            number = gradient.registration
            owner.submit(number, address, address, values, wake=wake, completion=completion, device=device)

    def _show(self, watch: CodecWatch[T], owner: Session, gradient: Gradient, values: T) -> None:
        assert gradient.asked is not None, "it is registered"
        loss_scale = 1.0 if gradient.terms is None else gradient.terms.loss_scale
        watch.sees(owner, gradient.asked, values, loss_scale)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def holds_something(self) -> bool:
        """Whether this rank keeps something of a gradient, whatever its codec is now."""
        if not self._by_tensor:
            return False
        kept = self.session().codec_states
        return not (kept.names() | kept.unsent).isdisjoint(self._by_tensor)

    def fallbacks(self) -> dict[str, str]:
        """The codecs that a monitor has fallen back to, by parameter name."""
        known = self.session().codec_states.fallbacks
        return {gradient.name: known[tensor] for tensor, gradient in self._by_tensor.items() if tensor in known}

    def unsent(self) -> list[str]:
        """The names of those that go uncompressed in the next step, with all that was held back of them."""
        known = self.session().codec_states.unsent
        return [gradient.name for tensor, gradient in self._by_tensor.items() if tensor in known]

    def fall_back(self, codecs_by_name: Mapping[str, str], unsent: Collection[str]) -> None:
        """Have these codecs, by parameter name, and no other fallbacks. They and those in `unsent` send all that was
        held back of them first. On all ranks alike, between steps.
        """
        kept = self.session().codec_states
        kept.end_fallbacks(self._by_tensor.keys())
        kept.unsent.difference_update(self._by_tensor)
        wanted = {tensor: codecs_by_name.get(gradient.name) for tensor, gradient in self._by_tensor.items()}
        fallen = {tensor: codec for tensor, codec in wanted.items() if codec is not None}
        left = {tensor for tensor, gradient in self._by_tensor.items() if gradient.name in unsent}
        kept.fall_back(fallen, fallen.keys() | left)

    def state_dict(self, gradients: Collection[Gradient], convert: Callable[[Any], Any]) -> dict[str, Any]:
        """Return what codecs keep of these on this rank, by parameter name. `convert` makes arrays the framework's."""
        names = {gradient.name: gradient.tensor for gradient in gradients}
        return state.converted(state.collect(self.session(), names), convert)

    def load_state_dict(
        self, gradients: Collection[Gradient], saved: Mapping[str, Any] | None, convert: Callable[[Any], Any]
    ) -> None:
        """Put back what `state_dict` gave; None: what was loaded had none. `convert` makes each array NumPy's."""
        self._sent_whole.clear()
        names = {gradient.name: gradient.tensor for gradient in gradients}
        state.restore(self.session(), names, None if saved is None else state.converted(saved, convert))

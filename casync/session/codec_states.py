"""The state that codecs keep of tensors from one step to the next, on this rank, and who may use it.

A lossy codec keeps the residual of a tensor: what this rank has not sent of its gradients yet. Some codecs keep more,
in arrays that they name. Both belong to the name of a tensor, as the session knows it (`allreduce.<name>`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from casync.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from casync import _core

__all__ = ["StateOwner", "CodecStates"]


class StateOwner:
    """One optimizer's right to what is kept under its names, until another optimizer takes one of them."""

    def __init__(self, keeps: bool = True, changed: Callable[[str], None] | None = None) -> None:
        """`changed`: called with a tensor that goes with another codec from now on."""
        self.keeps = keeps
        """Whether anything may be kept of its gradients. Without that nothing is lost to another one."""
        self.changed = changed
        self._lost = ""
        self._tensors: set[str] = set()
        self._loaded: set[str] = set()  # the session's

    def have(self, tensors: Collection[str], loaded: set[str]) -> None:
        """These are ours. `loaded`: what was loaded and not used yet, which is kept up to date here."""
        self._tensors.update(tensors)
        self._loaded = loaded

    def lose(self, tensor: str) -> None:
        """Another optimizer has taken `tensor`."""
        self._lost = tensor

    def check(self) -> None:
        """At each step, which uses what was loaded. Raises `InvalidArgumentError` if a later optimizer has a name of
        ours: they would feed on each other's residuals.
        """
        if self._lost:
            raise InvalidArgumentError(
                f"tensor {self._lost} belongs to a DistributedOptimizer that was made later, and residuals are kept by "
                "name: give their parameters different names, e.g. "
                "named_parameters=model.named_parameters(prefix='generator')"
            )
        if self._loaded:
            self._loaded -= self._tensors


class CodecStates:
    """The residuals and state arrays of one session, which has it as `codec_states`.

    Numbers are float32. What is read is a copy, and what is written is copied. Any thread may call any method, between
    steps: a tensor whose operation is outstanding raises `InvalidArgumentError`.
    """

    def __init__(self, core: _core.Session) -> None:
        self._core = core
        self._claims: dict[str, StateOwner] = {}
        self._sharing: dict[str, weakref.WeakSet[StateOwner]] = {}  # the others, where nothing is kept
        self._loaded: set[str] = set()
        self.fallbacks: dict[str, str] = {}
        """By tensor, the codec that a monitor has put in the place of the program's. The same on all ranks."""
        self.unsent: set[str] = set()
        """Tensors that go uncompressed in their next step, with all that was held back of them. The same on all ranks.
        """

    def residual_names(self) -> set[str]:
        """The tensors that have a residual."""
        return set(self._core.residual_names())

    def residual(self, tensor: str) -> NDArray[np.float32]:
        """Return what this rank has not sent of `tensor`: one number for each of its elements."""
        return self._core.residual(tensor)

    def set_residual(self, tensor: str, values: ArrayLike) -> None:
        """Replace the residual of `tensor`, whether it has one or not."""
        self._core.set_residual(tensor, values)

    def state_names(self) -> set[str]:
        """The tensors whose codec keeps state arrays, or counts steps."""
        return set(self._core.state_names())

    def state(self, tensor: str) -> _core.CodecState:
        """The state of the codec of `tensor`: the codec, how many steps it has made, and its arrays by name."""
        return self._core.state(tensor)

    def set_state(self, tensor: str, state: Mapping[str, Any]) -> None:
        """Replace the state of the codec of `tensor` by what `state()` gave, on this rank or on another. Raises
        `InvalidArgumentError` for anything else.
        """
        self._core.set_state(tensor, state)

    def names(self) -> set[str]:
        """The tensors of which anything is kept."""
        return self.residual_names() | self.state_names()

    def held_back(self, tensor: str) -> NDArray[np.float32] | None:
        """What this rank has not sent of `tensor` by now, in residuals and in what codecs call pending; None: it keeps
        nothing of that kind.
        """
        arrays = [self.residual(tensor)] if tensor in self.residual_names() else []
        if tensor in self.state_names():
            arrays += [array["values"] for array in self.state(tensor)["arrays"].values() if array["pending"]]
        if not arrays:
            return None
        first, *others = arrays
        for other in others:
            first = first + other
        return first

    def forget(self, tensors: Collection[str]) -> None:
        """Have everything that is kept of `tensors` start anew. Other names are ignored."""
        for tensor in self.names().intersection(tensors):
            self._core.forget(tensor)
        self.unsent.difference_update(tensors)
        self.end_fallbacks(tensors)

    # --- codecs that others have been put in the place of -------------------------------------------------------------

    def fall_back(self, codecs: Mapping[str, str], unsent: Collection[str] | None = None) -> None:
        """From the next step on these tensors go with these codecs, on all ranks alike. Those in `unsent` send all that
        was held back of them first; None: those of `codecs`.
        """
        self.fallbacks.update(codecs)
        for tensor in codecs:
            self._tell_changed(tensor)
        self.send_all(codecs if unsent is None else unsent)

    def send_all(self, tensors: Collection[str]) -> None:
        """In their next step these tensors go uncompressed, with all that was held back of them: 16 bits would round
        it, and overflow. On all ranks alike.
        """
        self.unsent.update(tensors)
        for tensor in tensors:
            self._tell_changed(tensor)

    def end_fallbacks(self, tensors: Collection[str]) -> None:
        """These tensors go with the program's own codecs again, on all ranks alike."""
        for tensor in self.fallbacks.keys() & set(tensors):
            del self.fallbacks[tensor]
            self.unsent.discard(tensor)
            self._tell_changed(tensor)

    def take_unsent(self, tensor: str) -> bool:
        """Whether the next step is the one in which `tensor` goes uncompressed. Says so once."""
        if tensor not in self.unsent:
            return False
        self.unsent.discard(tensor)
        return True

    def _tell_changed(self, tensor: str) -> None:
        owner = self._claims.get(tensor)
        if owner is not None and owner.changed is not None:
            owner.changed(tensor)

    # --- whose it is --------------------------------------------------------------------------------------------------

    def give_to(self, claim: StateOwner, tensors: Collection[str]) -> None:
        """Let `claim` have `tensors`, which others lose. What is kept of them starts anew, unless it was loaded and no
        step has used it yet.
        """
        for tensor in tensors:
            others = set(self._sharing.pop(tensor, ()))
            others.update({self._claims.get(tensor, claim)} - {claim})
            if claim.keeps or any(other.keeps for other in others):
                for other in others:
                    other.lose(tensor)
            elif others:
                self._sharing[tensor] = weakref.WeakSet(others)
            self._claims[tensor] = claim
        self.forget(set(tensors) - self._loaded)
        self._loaded.difference_update(tensors)
        claim.have(tensors, self._loaded)

    def release(self, claim: StateOwner) -> None:
        """Its optimizer is through. What is kept stays, until another one takes the names."""
        for tensor in [tensor for tensor, other in self._claims.items() if other is claim]:
            del self._claims[tensor]

    def take_from(self, claim: StateOwner, tensors: Collection[str]) -> None:
        """`claim` does not want `tensors` any more: forget what is kept of those that it has."""
        owned = {tensor for tensor in tensors if self._claims.get(tensor) is claim}
        for tensor in owned:
            del self._claims[tensor]
        self.forget(owned)

    def note_loaded(self, tensors: Collection[str]) -> None:
        """A checkpoint was put back, and these are all its tensors. They are for the optimizer that uses them next: the
        one that has them, or one that is made before that makes another step.
        """
        self._loaded.clear()
        self._loaded.update(tensors)

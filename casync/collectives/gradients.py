"""The order in which an optimizer's gradients are submitted and waited for.

Each is submitted as soon as it is there, `wait` has them all back. What differs between frameworks, how a gradient is
found and where its mean goes, is left to a subclass.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from casync.collectives.gradient_submits import Gradient, GradientSubmits
from casync.collectives.parameter_groups import Group, Groups
from casync.collectives.settings import Settings
from casync.collectives.sparse_exchange import SparsePending
from casync.errors import CallOrderError, MismatchError
from casync.tensors.adaptor import T, Tensors

__all__ = ["Entry", "Gradients"]

P = TypeVar("P", bound=Hashable)
E = TypeVar("E", bound="Entry")  # type: ignore[type-arg]

_TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally. If the other backward pass is that of another model's "
    "loss (a GAN), switch these gradients off in it, with requires_grad_(False)."
)


class Entry(Gradient, Generic[P]):
    """The gradient of one parameter."""

    __slots__ = ("delay", "group", "is_wanted", "is_zeros", "parameter")

    def __init__(self, parameter: P, name: str) -> None:
        super().__init__(name)
        self.parameter = parameter
        self.delay = 0  # backward passes until the gradient is ready
        self.group: Group[P] | None = None  # whose gradients are submitted with this one
        self.is_zeros = False  # whether zeros were submitted, because this rank has no gradient
        self.is_wanted = True  # whether this step synchronises it also where backward does not reach it


class _Ends:
    """How the operations of one step have ended."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.disputed: set[str] = set()
        """Tensors that some ranks have submitted as sparse ones, and others as dense ones."""

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Within it a failure is noted."""
        try:
            yield
        except Exception as error:
            if not self.disputes(error):
                self.failure = self.failure or error

    def disputes(self, error: Exception | None) -> bool:
        """Whether `error` says that ranks disagree about what is sparse; noted then."""
        if not isinstance(error, MismatchError) or not str(error).startswith("Mismatched operations"):
            return False
        assert error.tensor is not None
        self.disputed.add(error.tensor)
        return True


class Gradients(GradientSubmits[T], Generic[P, T, E]):
    """The gradients of one optimizer. Nothing is submitted before `add`."""

    def __init__(self, tensors: Tensors[T], settings: Settings) -> None:
        super().__init__(tensors, settings)
        self.passes = settings.passes
        """Backward passes that add up locally; a change counts from the next `wait` on."""
        self.is_distributed = settings.is_distributed
        self.entries: dict[P, E] = {}
        self.handles: dict[P, int | SparsePending[T] | None] = {}
        """The handles of this step; None for a gradient that waits for further backward passes, or for its group."""
        self._groups: Groups[P] = Groups(settings.groups)

    def add(self, new: Sequence[E]) -> None:
        """Handle the gradients of these parameters, in this order: all at first, later what was frozen or added."""
        self.take(new)
        for entry, joined in zip(new, self._groups.join([entry.parameter for entry in new]), strict=True):
            entry.delay, entry.group = self.passes, joined
            self.entries[entry.parameter] = entry

    def leave(self, gone: Sequence[E]) -> None:
        """Handle the gradients of these, which are not under way, no more."""
        for entry in gone:
            del self.entries[entry.parameter]
            self.handles.pop(entry.parameter, None)
        self._groups.leave([entry.parameter for entry in gone])
        self.give_back(gone)

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

    def arrived(self, entry: E) -> None:
        """A backward pass has made, or added to, the gradient of `entry`: submits it if its time has come. On the
        thread that runs backward.
        """
        if entry.delay <= 0:
            raise CallOrderError(_TOO_MANY_PASSES)
        entry.delay -= 1
        if entry.delay == 0 and entry.group is None:
            self.handles[entry.parameter] = self.submit_entry(entry)
            return
        self.handles[entry.parameter] = None
        if entry.delay == 0 and entry.group is not None and entry.group.completed():
            self._submit_together(entry.group)

    def submit_missing(self) -> None:
        """Submit the gradients that backward did not reach, or not often enough; zeros where there is no gradient."""
        for parameter, entry in self.entries.items():
            if self.handles.get(parameter) is None and (entry.is_wanted or parameter in self.handles):
                self.handles[parameter] = self.submit_entry(entry)

    def _submit_together(self, group: Group[P]) -> None:
        """Submit all gradients of the group. The last one wakes the runtime, which so finds all of them."""
        for parameter in group.members:
            is_last = parameter is group.members[-1]
            self.handles[parameter] = self.submit_entry(self.entries[parameter], wake=is_last)

    @abstractmethod
    def submit_entry(self, entry: E, *, wake: bool = True) -> int | SparsePending[T]:
        """Submit the gradient of `entry`; zeros if it has none, since another rank may wait for it."""

    def wait(self) -> Collection[P]:
        """Wait until all submitted gradients are reduced. Return the parameters whose gradients were dense. Raises the
        error that ended one, once all have ended.
        """
        dense = {p: handle for p, handle in self.handles.items() if isinstance(handle, int)}
        sparse = {p: handle for p, handle in self.handles.items() if isinstance(handle, SparsePending)}
        ends = _Ends()
        if self.watch is not None:
            self.watch.begin(self.session())
        try:
            # Zeros that stand for a gradient end one by one: it may be sparse on another rank.
            self._end(ends, [handle for p, handle in dense.items() if not self.entries[p].is_zeros])
            for parameter, handle in dense.items():
                if self.entries[parameter].is_zeros:
                    self._end(ends, [handle])
        finally:
            self.handles.clear()
            self.start_anew()
            self._take_sparse(ends, sparse)
        by_tensor = {entry.tensor: entry for entry in self.entries.values()} if ends.disputed else {}
        for tensor in sorted(ends.disputed):
            entry = by_tensor[tensor]
            dense.pop(entry.parameter, None)
            with ends.noting():
                self.settle(entry, sparse.get(entry.parameter))
        if ends.failure is not None:
            if self.watch is not None:
                self.watch.drop()
            raise ends.failure
        if self.watch is not None:
            self.watch.step_over(self.session(), self.settings.op, ends.disputed)
        return dense.keys()

    def _end(self, ends: _Ends, handles: list[int]) -> None:
        with ends.noting():
            self.session().synchronize_all(handles)

    def _take_sparse(self, ends: _Ends, outstanding: dict[P, SparsePending[T]]) -> None:
        for parameter, handle in outstanding.items():
            if not ends.disputes(handle.wait_for_indices()):
                with ends.noting():
                    self.set_sparse(parameter, *handle.finish())

    def settle(self, entry: E, pending: SparsePending[T] | None) -> None:
        """Ranks have submitted the gradient of `entry` as a sparse one, which `pending` is, and as a dense one; all
        come here.
        """
        raise NotImplementedError

    def set_sparse(self, parameter: P, indices: T, values: T) -> None:
        """Take the reduced gradient of a parameter whose gradients are sparse, and were submitted as such."""
        raise NotImplementedError

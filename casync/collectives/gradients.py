"""The order in which an optimizer's gradients are submitted and waited for.

Each is submitted as soon as it is there, `wait` has them all back. What differs between frameworks, how a gradient is
found and where its mean goes, is left to a subclass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Sequence
from typing import Generic, TypeVar

from casync.collectives.gradient_submits import Gradient, GradientSubmits
from casync.collectives.parameter_groups import Group, Groups
from casync.collectives.settings import Settings
from casync.collectives.sparse import SparsePending
from casync.tensors import T, Tensors

__all__ = ["Entry", "Gradients"]

P = TypeVar("P", bound=Hashable)
E = TypeVar("E", bound="Entry")  # type: ignore[type-arg]

_TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)


class Entry(Gradient, Generic[P]):
    """The gradient of one parameter."""

    __slots__ = ("delay", "group", "is_wanted", "parameter")

    def __init__(self, parameter: P, name: str) -> None:
        super().__init__(name)
        self.parameter = parameter
        self.delay = 0  # backward passes until the gradient is ready
        self.group: Group[P] | None = None  # whose gradients are submitted with this one
        self.is_wanted = True  # whether this step synchronises it also where backward does not reach it


class Gradients(GradientSubmits[T], Generic[P, T, E]):
    """Those of one optimizer. Nothing is submitted before `add`."""

    def __init__(self, tensors: Tensors[T], settings: Settings) -> None:
        super().__init__(tensors, settings)
        self.passes = settings.passes
        """Backward passes that add up locally; a change counts from the next `wait` on."""
        self.is_distributed = settings.is_distributed
        self.entries: dict[P, E] = {}
        self.handles: dict[P, int | SparsePending[T] | None] = {}
        """Of this step; None for a gradient that waits for further backward passes, or for its group."""
        self._groups: Groups[P] = Groups(settings.groups)

    def add(self, new: Sequence[E]) -> None:
        """Have the gradients of these parameters, in this order: all at first, later what was frozen or added."""
        self.take(new)
        for entry, joined in zip(new, self._groups.join([entry.parameter for entry in new]), strict=True):
            entry.delay, entry.group = self.passes, joined
            self.entries[entry.parameter] = entry

    def leave(self, gone: Sequence[E]) -> None:
        """Have the gradients of these, which are not under way, no more."""
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
            raise AssertionError(_TOO_MANY_PASSES)
        entry.delay -= 1
        if entry.delay == 0 and entry.group is None:
            self.handles[entry.parameter] = self.submit_entry(entry)
            return
        self.handles[entry.parameter] = None
        if entry.delay == 0 and entry.group is not None and entry.group.completed():
            self._submit_together(entry.group)

    def submit_missing(self) -> None:
        """Those that backward did not reach, or not often enough; zeros where there is no gradient."""
        for parameter, entry in self.entries.items():
            if self.handles.get(parameter) is None and (entry.is_wanted or parameter in self.handles):
                self.handles[parameter] = self.submit_entry(entry)

    def _submit_together(self, group: Group[P]) -> None:
        """The last one wakes the runtime, which so finds all of them."""
        for parameter in group.members:
            is_last = parameter is group.members[-1]
            self.handles[parameter] = self.submit_entry(self.entries[parameter], wake=is_last)

    @abstractmethod
    def submit_entry(self, entry: E, *, wake: bool = True) -> int | SparsePending[T]:
        """Submit the gradient of `entry`; zeros if it has none, since another rank may wait for it."""

    def wait(self) -> Collection[P]:
        """Until all that were submitted are the reduced ones; the parameters whose gradients were dense. Raises what
        ended one, once all have ended.
        """
        dense = {p: handle for p, handle in self.handles.items() if isinstance(handle, int)}
        sparse = {p: handle for p, handle in self.handles.items() if isinstance(handle, SparsePending)}
        try:
            self.session().synchronize_all(list(dense.values()))
        finally:
            self.handles.clear()
            self.start_anew()
            self._take_sparse(sparse)
        return dense.keys()

    def _take_sparse(self, outstanding: dict[P, SparsePending[T]]) -> None:
        failure: Exception | None = None
        for parameter, handle in outstanding.items():
            try:
                self.set_sparse(parameter, *handle.finish())
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def set_sparse(self, parameter: P, indices: T, values: T) -> None:
        """The reduced gradient of a parameter whose gradients are sparse, and were submitted as such."""
        raise NotImplementedError

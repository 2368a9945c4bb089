"""The global parameters and buffers, and this rank's own: which of them stand in the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from casync.collectives import broadcast
from casync.collectives.settings import Settings
from casync.collectives.waiting import synchronize_each
from casync.errors import InvalidArgumentError
from casync.relaxed.fragment import Fragment, Held
from casync.session import Session
from casync.tensors.adaptor import T, Tensors

__all__ = ["INTEGERS", "Anchors"]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16")
"""The dtypes of buffers that count, and have no mean."""
_HALF = ("float16", "bfloat16")


class Anchors(Generic[T]):
    """The values of the fragments' parameters and buffers that all ranks share. One thread calls the methods."""

    def __init__(self, tensors: Tensors[T], fragments: Sequence[Fragment[T]]) -> None:
        self._tensors, self._fragments = tensors, fragments
        self.parameters: dict[str, T] = {}
        """By name; in float32 where the model's have 16 bits."""
        self.buffers: dict[str, T] = {}
        self.aside: dict[str, T] | None = None
        """This rank's own values by name, while the global ones stand in the model."""
        for fragment in fragments:
            for held in fragment.parameters:
                values = held.read()
                is_half = tensors.dtype(values) in _HALF
                self.parameters[held.name] = tensors.cast(values, "float32") if is_half else tensors.copy(values)
            for held in fragment.buffers:
                self.buffers[held.name] = tensors.copy(held.read())

    def all(self) -> list[Held[T]]:
        """Return the parameters and buffers of the model."""
        return [held for fragment in self._fragments for held in fragment.all()]

    def _of(self, held: Held[T]) -> T:
        anchor = self.parameters.get(held.name)
        return self.buffers[held.name] if anchor is None else anchor

    def take(self) -> None:
        """Make this rank's own parameters and buffers the global ones."""
        for held in self.all():
            anchor = self._of(held)
            self._tensors.assign(anchor, self._tensors.cast(held.read(), self._tensors.dtype(anchor)))

    def give(self, fragments: Iterable[Fragment[T]]) -> None:
        """Make the global parameters and buffers of these fragments this rank's own."""
        for fragment in fragments:
            for held in fragment.all():
                held.write(self._of(held))

    def broadcast(self, owner: Session, settings: Settings, prefix: str) -> None:
        """Make those of the lowest rank everybody's, and what is fixed in its model. Collective."""

        def sent(name: str, values: T) -> int:
            full, root = f"{prefix}.{name}", owner.peers[0]
            return broadcast.submit(self._tensors, values, root, full, settings.process_set, in_place=True)

        if owner.size == 1:
            return
        synchronize_each(sent(name, one) for of in (self.parameters, self.buffers) for name, one in of.items())
        for held in (held for fragment in self._fragments for held in fragment.fixed):
            values = self._tensors.copy(held.read())  # one at a time: they may be most of a model
            synchronize_each([sent(f"fixed.{held.name}", values)])
            held.write(values)

    def mix(self, held: Held[T], alpha: float) -> None:
        """Set parameter <- (1 - alpha) anchor + alpha parameter."""
        anchor = self.parameters[held.name]
        if alpha == 0:
            held.write(anchor)
        elif alpha < 1:
            values = held.read()
            mixed = self._tensors.scaled(self._tensors.beside(anchor, values), 1.0 - alpha)
            self._tensors.accumulate(mixed, alpha, values)
            held.write(mixed)

    def differ(self, fragments: Iterable[Fragment[T]]) -> bool:
        """Whether float parameters or buffers of the model are others than the global ones."""
        tensors = self._tensors
        for held in (held for fragment in fragments for held in fragment.all()):
            values = held.read()
            if tensors.dtype(values) not in INTEGERS:
                off = tensors.copy(tensors.cast(tensors.beside(self._of(held), values), tensors.dtype(values)))
                tensors.accumulate(off, -1.0, values)
                if tensors.squared_norm(off) != 0:  # or NaN
                    return True
        return False

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the global parameters and buffers stand in the model."""
        if self.aside is not None:
            raise InvalidArgumentError("global_parameters() was entered twice")
        self._put_aside()
        try:
            yield
        finally:
            self._put_back()

    @contextmanager
    def own_in_place(self) -> Iterator[None]:
        """Within it this rank's own stand in the model, also inside of `in_place`."""
        is_aside = self.aside is not None
        self._put_back()
        try:
            yield
        finally:
            if is_aside:
                self._put_aside()

    def own(self) -> dict[str, T]:
        """Return this rank's own values by name; they may share the model's memory."""
        return {held.name: held.read() for held in self.all()} if self.aside is None else dict(self.aside)

    def _put_aside(self) -> None:
        self.aside = {held.name: self._tensors.copy(held.read()) for held in self.all()}
        self.give(self._fragments)

    def _put_back(self) -> None:
        own, self.aside = self.aside, None
        if own is not None:
            for held in self.all():
                held.write(own[held.name])

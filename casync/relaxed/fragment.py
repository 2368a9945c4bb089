"""The parameters and buffers of a model, as rounds see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from casync.tensors.adaptor import T

__all__ = ["Fragment", "Held"]


class Held(Protocol[T]):
    """A parameter or a buffer, as the adaptor's framework has it."""

    name: str
    """The user's name for it, alike on all ranks."""

    def read(self) -> T:
        """Its values now; they may share its memory."""

    def write(self, values: T) -> None:
        """Give it these values, of its shape, and of its dtype or a wider one."""


@dataclass
class Fragment(Generic[T]):
    """The parameters that are sent in one round, and the buffers that go with them."""

    parameters: Sequence[Held[T]]
    buffers: Sequence[Held[T]] = ()
    fixed: Sequence[Held[T]] = ()
    """Frozen weights and masks, which no step changes. The lowest rank gives them to all, and no round sends them."""
    steps: int = 0
    """Own steps since its last round began."""

    def all(self) -> list[Held[T]]:
        """Return the parameters and the buffers."""
        return [*self.parameters, *self.buffers]

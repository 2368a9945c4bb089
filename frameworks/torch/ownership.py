"""Which optimizer's gradients a parameter has.

Two optimizers that submit one parameter's gradient would have the same memory reduced twice at once. So a parameter
belongs to the last one that it was given to, as long as that one is there and holds it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Protocol, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Owner", "alive", "other_owner", "own"]

T = TypeVar("T")


class Owner(Protocol):
    """The gradients of one optimizer."""

    def holds(self, parameter: torch.Tensor) -> bool:
        """Whether the optimizer still has it in one of its groups."""

    def retire(self, parameter: torch.Tensor) -> None:
        """Another one is given `parameter`. Raises `InvalidArgumentError` while gradients are under way."""


_OWNERS = WeakTensorKeyDictionary()
"""A weak reference to an `Owner` for each parameter."""


def other_owner(parameter: torch.Tensor, owner: Owner) -> Owner | None:
    """Return the owner of `parameter`, if it is not `owner` and still exists."""
    reference = _OWNERS.get(parameter)
    other: Owner | None = None if reference is None else reference()
    return other if other is not None and other is not owner and other.holds(parameter) else None


def own(parameters: Iterable[torch.Tensor], owner: Owner) -> None:
    """Give these to `owner`; others that have one of them retire."""
    parameters = list(parameters)
    if _others(parameters, owner):
        gc.collect()  # one that nobody holds any more is none
        for parameter, other in _others(parameters, owner):
            other.retire(parameter)
    for parameter in parameters:
        _OWNERS[parameter] = weakref.ref(owner)


def _others(parameters: Iterable[torch.Tensor], owner: Owner) -> list[tuple[torch.Tensor, Owner]]:
    found = ((parameter, other_owner(parameter, owner)) for parameter in parameters)
    return [(parameter, other) for parameter, other in found if other is not None]


def alive(reference: weakref.ref[T]) -> T:
    """Return what `reference` refers to, which exists as long as anybody can ask."""
    found = reference()
    assert found is not None
    return found

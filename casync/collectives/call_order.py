"""Which tensor a call without a name is about: what codecs keep is kept by that. Pure.

`torch.distributed` hands over tensors and no names. What sends gradients is an object that lives as long as its model,
though: a bucket of DDP, a module of FSDP. All ranks have the same objects, and use them for the first time in one
order. Where there is no such object, a call is known by its place among its likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

__all__ = ["PLACES", "Place", "CallOrder"]

PLACES = 64
"""How many calls of one kind a turn may have. After those places come again."""

Call = Hashable
"""All by which calls are told apart, their place aside."""


class Place(NamedTuple):
    """A name that is alike on all ranks. `is_new`: no call has had it."""

    name: str
    is_new: bool


class CallOrder:
    """The places of one group's calls."""

    def __init__(self) -> None:
        self._objects: dict[Call, dict[Hashable, int]] = {}
        self._used: set[tuple[Call, str]] = set()
        self._turn: Hashable = None
        self._counts: Counter[Call] = Counter()

    def of_object(self, call: Call, sender: Hashable) -> Place:
        """The place of a call that `sender` makes. A sender that is gone must not equal a later one."""
        known = self._objects.setdefault(call, {})
        return self._place(call, f"sender{known.setdefault(sender, len(known))}")

    def of_turn(self, call: Call, turn: Hashable) -> Place:
        """The place of the next call like this in a turn. A turn is a backward pass, or what lies between two steps of
        an optimizer: each has the same calls again.
        """
        if turn != self._turn:
            self._turn = turn
            self._counts.clear()
        number = self._counts[call] % PLACES
        self._counts[call] += 1
        return self._place(call, f"place{number}")

    def _place(self, call: Call, name: str) -> Place:
        is_new = (call, name) not in self._used
        self._used.add((call, name))
        return Place(name, is_new)

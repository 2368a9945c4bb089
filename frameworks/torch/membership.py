"""Which parameters an optimizer holds, and at which place of which group. A program may change that between steps."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any, NamedTuple

import torch

__all__ = ["Membership", "Place"]


class Place(NamedTuple):
    """Where in an optimizer's groups a parameter stands."""

    group: int
    position: int


class Membership:
    """The parameters that an optimizer held at the last look, and their places."""

    def __init__(self) -> None:
        self.places: dict[torch.nn.Parameter, Place] = {}
        """The first place of each parameter."""
        self.is_replaced = False
        """Whether the last change left every group as long as it was: what is new stands where something has left."""
        self._held: list[torch.nn.Parameter] = []
        self._sizes: list[int] = []

    def look(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Whether anything has changed since the last look."""
        held = [parameter for group in groups for parameter in group["params"]]
        sizes = [len(group["params"]) for group in groups]
        if sizes == self._sizes and not any(map(is_not, held, self._held)):
            return False
        self.is_replaced = sizes == self._sizes
        self._held, self._sizes = held, sizes
        self.places = {}
        for g, group in enumerate(groups):
            for i, parameter in enumerate(group["params"]):
                self.places.setdefault(parameter, Place(g, i))
        return True

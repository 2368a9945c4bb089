"""A state_dict is loaded into the containers that an optimizer has.

torch's own `load_state_dict` makes new groups. Whoever holds the old ones, as a scheduler that was made before the
optimizer was wrapped, would go on changing what nobody reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["loading_in_place", "poured"]


def poured(optimizer: torch.optim.Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
    """Put what torch's `load_state_dict` hands to `__setstate__` into the groups and the state that `optimizer` has.
    Return what to hand on in its place.
    """
    groups, state = optimizer.param_groups, optimizer.state
    for group, new in zip(groups, loaded["param_groups"], strict=True):
        fresh = dict(new)
        group.clear()
        group.update(fresh)
    fresh_state = dict(loaded["state"])
    state.clear()
    state.update(fresh_state)
    return {**loaded, "param_groups": groups, "state": state}


@contextlib.contextmanager
def loading_in_place(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it `load_state_dict` of an optimizer of torch's works in place."""
    original = optimizer.__setstate__
    optimizer.__dict__["__setstate__"] = lambda loaded: original(poured(optimizer, loaded))
    try:
        yield
    finally:
        del optimizer.__dict__["__setstate__"]

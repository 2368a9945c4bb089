"""Whether an optimizer can take the state of another rank's: it has the same parameters, and the same settings."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from casync.errors import MismatchError
from casync.session.default import session_of
from casync.session.gather_bytes import gather_bytes
from casync.session.process_sets import ProcessSet

__all__ = ["Outline", "agree", "difference", "outline"]


class Outline(NamedTuple):
    """The description of an optimizer that another rank is given before it takes the state."""

    kind: str
    shapes: list[list[tuple[int, ...]]]  # of the parameters, by group
    settings: list[set[str]]  # of each group: lr and the like


def outline(optimizer: torch.optim.Optimizer) -> Outline:
    """Return the outline of `optimizer`."""
    groups = optimizer.param_groups
    shapes = [[tuple(parameter.shape) for parameter in group["params"]] for group in groups]
    return Outline(type(optimizer).__name__, shapes, [set(group) - {"params"} for group in groups])


def difference(optimizer: torch.optim.Optimizer, theirs: Outline, root: int) -> str | None:
    """Return what to say if `optimizer` cannot take the state of the rank `root`; None if it can."""
    mine = outline(optimizer)
    if len(mine.shapes) != len(theirs.shapes):
        return f"{_count(mine.shapes, 'parameter group')} where rank {root} has {len(theirs.shapes)}"
    for number, (ours, others) in enumerate(zip(mine.shapes, theirs.shapes, strict=True)):
        if len(ours) != len(others):
            return f"{_count(ours, 'parameter')} in parameter group {number} where rank {root} has {len(others)}"
        for index, (here, there) in enumerate(zip(ours, others, strict=True)):
            if here != there:
                what = _name(optimizer, number, index)
                return f"shape {here} of {what} where rank {root} has {there}"
    for number, names in enumerate(theirs.settings):
        if missing := sorted(set(optimizer.defaults) & mine.settings[number] - names):
            return (
                f"an optimizer {mine.kind} with {', '.join(missing)} in parameter group {number} where rank {root} has "
                f"{theirs.kind} without"
            )
    return None


def agree(process_set: ProcessSet, mine: str | None) -> None:
    """Raise `MismatchError` on every rank if one has something to say. Collective."""
    owner = session_of(process_set)
    everyones = gather_bytes(owner, "optimizer_state.agree", (mine or "").encode())
    for rank, text in enumerate(everyones):
        if text:
            number = owner.peers[rank]
            raise MismatchError(
                f"broadcast_optimizer_state: rank {number} has {bytes(text).decode()}. Make the same model and the "
                "same optimizer on all ranks",
                kind="mismatch", op="broadcast", rank=owner.peers[owner.rank], peer=number,
            )  # fmt: skip


def _name(optimizer: torch.optim.Optimizer, group: int, index: int) -> str:
    names = getattr(optimizer, "_parameter_names", {})  # of a DistributedOptimizer
    parameter = optimizer.param_groups[group]["params"][index]
    return f"parameter {names.get(parameter, f'{index} of parameter group {group}')}"


def _count(what: list[Any], noun: str) -> str:
    return f"{len(what)} {noun}{'s' * (len(what) != 1)}"

"""Whether a saved state is one of these rounds, and all of it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from casync.errors import InvalidArgumentError
from casync.plan.plans import GradientPlan

__all__ = ["FORMAT", "check_saved", "plans_in", "text_of", "with_count"]

FORMAT = 1
_COUNT = "leaves"
_Shapes = Mapping[str, tuple[int, ...]]


def with_count(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """This rank's part of a state, with how many values there are in it and in what ranks share."""
    return {**own, _COUNT: _values_in(shared) + _values_in(own)}


def text_of(plans: Mapping[str, GradientPlan]) -> str:
    """Plans as one value of a state."""
    return json.dumps({name: asdict(plan) for name, plan in plans.items()})


def plans_in(text: str) -> dict[str, GradientPlan]:
    """The plans in what `text_of` gave."""
    return {name: GradientPlan(**plan) for name, plan in json.loads(text).items()}


def check_saved(state: Mapping[str, Any], own_key: str, fragments: int, parameters: _Shapes, buffers: _Shapes) -> None:
    """Raise `InvalidArgumentError` if the state is not of these parameters and buffers, or lacks a part.

    Args:
        state: as `Rounds.state_dict` gave it; perhaps without this rank's part, which is under `own_key`.
        fragments: how many there are.
        parameters: the shapes, by name.
        buffers: the shapes, by name.
    """
    if state.get("format") != FORMAT:
        raise InvalidArgumentError(f"the state is of format {state.get('format')!r}, and this version reads {FORMAT}")
    if (own := state.get(own_key)) is not None:
        shared = {key: kept for key, kept in state.items() if not key.startswith("rank ")}
        if _values_in(shared) + _values_in(own) - 1 != own[_COUNT]:
            raise InvalidArgumentError(
                "the state lacks a part of what was saved. torch.distributed.checkpoint loads only what state_dict() "
                "has at that time, and the state of an outer optimizer and of codecs is made in the first round: save "
                "with torch.save(), a file for each rank"
            )
    if len(state["steps"]) != fragments:
        raise InvalidArgumentError(
            f"the state has {len(state['steps'])} fragments, and there are {fragments}: give the same fragments as "
            "when it was saved"
        )
    for kind, mine, theirs in (("parameter", parameters, state["global"]), ("buffer", buffers, state["buffers"])):
        for name in sorted(mine.keys() | theirs.keys()):
            there = tuple(theirs[name].shape) if name in theirs else None
            if mine.get(name) != there:
                raise InvalidArgumentError(
                    f"the state is of another model, or of other settings: {kind} {name} has shape {there} there, and "
                    f"here {mine.get(name)}"
                )


def _values_in(state: Any) -> int:
    """The number of values in nested dictionaries."""
    return sum(map(_values_in, state.values())) if isinstance(state, Mapping) else 1

"""Passes over the same chunks as one: each chunk goes through all of them before the next one does.

What the first of them has read the others then find in the nearest cache, where passes one after the other would read
the whole array again each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from casync.compll.ir.graph import Memory, Value, walk
from casync.compll.ir.operators import LONGEST_SMALL_CHUNK
from casync.compll.ir.program import Pass, Scatter, Step, arrays_of, needs

__all__ = ["Chunkwise", "chunkwise"]


@dataclass(eq=False)
class Chunkwise(Pass):
    """`parts`: what is done with a chunk, in order; the actions are those of all of them."""

    parts: list[Pass] = field(default_factory=list)


def chunkwise(steps: Sequence[Step]) -> list[Step]:
    """The steps with such passes joined, each at the place of its first."""
    done: list[Step] = []
    for step in steps:
        place = _place(done, step) if isinstance(step, Pass) else None
        if place is None:
            done.append(step)
        else:
            first = done[place]
            assert isinstance(first, Pass) and isinstance(step, Pass)
            parts = [*(first.parts if isinstance(first, Chunkwise) else [first]), step]
            actions = [action for part in parts for action in part.actions]
            done[place] = Chunkwise(first.domain, first.chunk, actions, parts)
    return done


def _place(done: Sequence[Step], step: Pass) -> int | None:
    """Of the pass that this one can join."""
    if step.chunk is None or (step.chunk.op == "constant" and step.chunk.data <= LONGEST_SMALL_CHUNK):
        return None
    for place in reversed(range(len(done))):
        other = done[place]
        if isinstance(other, Pass) and other.domain is step.domain and other.chunk is step.chunk:
            return place if _by_chunk(other, step) else None
        if not _may_go_before(step, other):
            return None
    return None


def _may_go_before(step: Pass, other: Step) -> bool:
    needed = set(needs(step.reads)) | {action.before for action in step.actions if isinstance(action, Scatter)}
    touched = (*needs(other.reads), *arrays_of(other), *other.makes)
    return not needed.intersection(other.makes) and not _states(step.makes).intersection(_states(touched))


def _by_chunk(first: Pass, second: Pass) -> bool:
    """Whether the second needs no more of what the first makes, and the first of what the second changes, than what
    belongs to the same chunk.
    """
    made = set(first.makes)
    if any(isinstance(one, Value) and one in made for one in needs(second.reads)):
        return False
    elsewhere = [[part.data for part in walk(one.reads) if part.op == "pick"] for one in (first, second)]
    return not made.intersection(elsewhere[1]) and not (
        _states(first.makes).intersection(_states(elsewhere[1]))
        or _states(second.makes).intersection(_states(elsewhere[0]))
    )


def _states(several: Sequence[Value | Memory | None]) -> set[str]:
    return {one.name for one in several if isinstance(one, Memory) and one.place == "state"}

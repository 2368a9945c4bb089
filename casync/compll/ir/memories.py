"""Which memories a program uses, and what is known of their lengths before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from casync.compll.ir.graph import UNIT, Domain, Memory, Value, walk
from casync.compll.ir.program import Block, Branch, Call, Pass, needs

__all__ = ["lengths_known", "used"]

_KNOWN_LATER = frozenset({"result", "count", "field", "load", "pick", "received", "state", "draw_below", "shared_draw"})


def used(block: Block) -> set[Memory]:
    """All that its steps read or make."""
    found = {made for made in block.makes if isinstance(made, Memory)}
    for step in block.steps:
        found |= {one for one in needs(step.reads) if isinstance(one, Memory)}
        if isinstance(step, Call):
            found |= set(step.arrays)
        elif isinstance(step, Branch):
            found |= used(step.then) | used(step.otherwise)
            found |= {one for entry in step.merged for one in entry[1:] if isinstance(one, Memory)}
    return found


def lengths_known(block: Block, memories: Iterable[Memory]) -> list[Value]:
    """Those of the memories and of what passes run over, which what they choose is no longer than; the unit's and its
    chunks' apart.
    """
    domains = {*(memory.domain for memory in memories), *_run_over(block)}
    lengths = {domain.length for domain in domains if domain.parent is not UNIT and domain.length is not None}
    known = (length for length in lengths if all(part.op not in _KNOWN_LATER for part in walk([length])))
    return sorted(known, key=lambda length: length.number)


def _run_over(block: Block) -> Iterator[Domain]:
    for step in block.steps:
        if isinstance(step, Pass):
            yield step.domain
        elif isinstance(step, Branch):
            yield from _run_over(step.then)
            yield from _run_over(step.otherwise)

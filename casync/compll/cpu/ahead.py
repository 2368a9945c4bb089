"""Fetching ahead, in passes that write over what they read: a processor's own prefetchers fall behind there."""

from __future__ import annotations

from casync.compll.cpu.values import elements_inside, pointer, reads_gradient
from casync.compll.ir.program import Action, Deliver, Leave, Lose, Pass, Store

__all__ = ["fetch_ahead"]


def fetch_ahead(step: Pass) -> list[str]:
    """Lines for each vector of the pass, for every array in memory that it reads from front to back; none in a pass
    that only reads.
    """
    lines = []
    if any(map(_updates, step.actions)):
        if reads_gradient(step):
            lines += [_fetch("accumulated"), f"if constexpr (kFeedback) {_fetch('residual')}"]
        loads = {value.data.number: value.data for value in elements_inside(step.reads) if value.op == "load"}
        lines += [_fetch(pointer(memory)) for memory in loads.values() if memory.place == "state"]
    if any(isinstance(action, Deliver) and action.index is None for action in step.actions):
        lines.append("if constexpr (kInto != Into::set) fetch_ahead(job.out + i, ahead);")
    return lines


def _updates(action: Action) -> bool:
    in_state = isinstance(action, Store) and action.memory.place == "state"
    return in_state or isinstance(action, (Leave, Lose))


def _fetch(array: str) -> str:
    return f"fetch_ahead({array} + i, ahead);"

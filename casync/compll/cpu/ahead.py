"""Fetching ahead, in passes that write over what they read: a processor's own prefetchers fall behind there."""

from __future__ import annotations

from casync.compll.cpu.values import elements_inside, pointer, reads_gradient
from casync.compll.ir.program import Action, Deliver, Leave, Lose, Pass, Store

__all__ = ["GRADIENT_AHEAD", "fetch_ahead"]

GRADIENT_AHEAD = ("fetch_ahead(accumulated + i, ahead);", "if constexpr (kFeedback) fetch_ahead(residual + i, ahead);")
"""Lines for each vector of a pass over the gradient."""


def fetch_ahead(step: Pass) -> list[str]:
    """Lines for each vector of the pass, for every array in memory that it reads from front to back; none in a pass
    that only reads.
    """
    lines: list[str] = []
    if any(map(_updates, step.actions)):
        if reads_gradient(step):
            lines += GRADIENT_AHEAD
        loads = {value.data.number: value.data for value in elements_inside(step.reads) if value.op == "load"}
        states = (memory for memory in loads.values() if memory.place == "state")
        lines += [f"fetch_ahead({pointer(memory)} + i, ahead);" for memory in states]
    if any(isinstance(action, Deliver) and action.index is None for action in step.actions):
        lines.append("if constexpr (kInto != Into::set) fetch_ahead(job.out + i, ahead);")
    return lines


def _updates(action: Action) -> bool:
    in_state = isinstance(action, Store) and action.memory.place == "state"
    return in_state or isinstance(action, (Leave, Lose))

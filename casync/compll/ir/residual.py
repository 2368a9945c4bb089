"""What the runtime's residual becomes, while the gradient is read anyway.

Of a payload that says which elements were sent, decoding for the residual's sake would read all of it again to take
zeros off. Instead the last pass over the gradient leaves the sum there, and only what was sent is taken off.
"""

from __future__ import annotations

from casync.compll.ir.graph import UNIT, Value, walk
from casync.compll.ir.program import Leave, Pass, Program

__all__ = ["leave_early"]


def leave_early(rounds: tuple[Program, ...], decode: Program) -> None:
    if len(rounds) > 1 or not decode.sparse:
        return
    passes = [step for step in rounds[0].block.steps if isinstance(step, Pass) and step.domain is UNIT]
    reading = [(step, _gradient(step)) for step in passes]
    last = next(((step, gradient) for step, gradient in reversed(reading) if gradient is not None), None)
    if last is not None and not any(part.op == "pick" and part.data is None for part in walk(last[0].reads)):
        last[0].actions.append(Leave(last[1]))


def _gradient(step: Pass) -> Value | None:
    return next((part for part in walk(step.reads) if part.op == "gradient"), None)

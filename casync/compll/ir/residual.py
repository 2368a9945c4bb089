"""Writes the runtime's residual while the gradient is read anyway, for codecs that send only some elements.

To compute the residual by a full decode would read the whole gradient again, and subtract zero from most elements.
Instead the last pass over the gradient stores the accumulated values in the residual. Then only the elements that were
sent are subtracted.
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

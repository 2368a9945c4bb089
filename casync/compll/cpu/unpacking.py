"""Runs that bytes stand for, unpacked while what they make is delivered.

All of them would be an array in memory, written once and read once; a block's fit into the first-level cache.
"""

from __future__ import annotations

from dataclasses import replace

from casync.compll.cpu.tables import byte_table
from casync.compll.ir.coded import UnpackedRuns
from casync.compll.ir.graph import Memory
from casync.compll.ir.program import Block, Call, Deliver, Pass, Program, readers

__all__ = ["Unpacking", "unpacking"]


class Unpacking(Pass):
    """A pass over the chunks whose bytes are what `repeat` makes."""

    def __init__(self, step: Pass, repeat: Call) -> None:
        super().__init__(step.domain, step.chunk, step.actions)
        self.repeat = repeat

    @property
    def made(self) -> Memory:
        (made,) = self.repeat.makes
        assert isinstance(made, Memory)
        return made


def unpacking(program: Program) -> Program:
    """The program with such passes in place of the calls and the passes that alone read what these make."""
    steps = list(program.block.steps)
    for call in [step for step in steps if isinstance(step, Call) and isinstance(step.data, UnpackedRuns)]:
        (made,) = call.makes
        assert isinstance(made, Memory)
        reading = readers(steps, made)
        if len(reading) == 1 and isinstance(reading[0], Pass) and _by_chunks(reading[0], made):
            steps[steps.index(reading[0])] = Unpacking(reading[0], call)
            steps.remove(call)
    return replace(program, block=Block(steps, program.block.changed))


def _by_chunks(step: Pass, made: Memory) -> bool:
    """Whether each chunk that is delivered takes its byte of `made`, so that all of them are taken in order."""
    if step.chunk is not None or [type(action) for action in step.actions] != [Deliver]:
        return False
    table = byte_table(step.actions[0].value)
    chunks = made.domain
    if table is None or table.memory is not made or chunks.parent is not step.domain or chunks.chunk is None:
        return False
    return chunks.chunk.op == "constant" and bool(chunks.chunk.data == table.chunk)

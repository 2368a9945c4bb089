"""Runs that are packed into bytes, and bytes that stand for runs, without arrays of runs in between.

The calls of `runlength` and `repeat` get the functions that turn a run into its byte, or a byte into its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from casync.compll.ir.graph import Graph, Memory, Value, walk
from casync.compll.ir.program import Action, Block, Branch, Call, Item, Pack, Pass, Store, arrays_of, needs

__all__ = ["PackedRuns", "UnpackedRuns", "code_runs"]

_BYTES = 256


@dataclass(frozen=True, eq=False)
class PackedRuns:
    """What a runlength makes bytes of its runs with."""

    head: Value
    length: Value
    code: Value
    alone: Value  # the code of a single element


@dataclass(frozen=True, eq=False)
class UnpackedRuns:
    """What a repeat makes runs of bytes with."""

    code: Value
    value: Value
    count: Value


def code_runs(graph: Graph, block: Block, payload: Sequence[Item]) -> None:
    """Where nothing else needs the arrays."""
    if any(isinstance(step, Branch) for step in block.steps):
        return
    for position, step in enumerate(block.steps):
        if isinstance(step, Call) and step.operator == "runlength":
            block.steps[position] = _packed(graph, block, step, payload)
        elif isinstance(step, Call) and step.operator == "repeat":
            block.steps[position] = _unpacked(graph, block, step)


def _packed(graph: Graph, block: Block, call: Call, payload: Sequence[Item]) -> Call:
    count, heads, lengths = call.makes
    assert isinstance(heads, Memory) and isinstance(lengths, Memory)
    longest = call.scalars[1]
    users = [action for action in _actions(block) if {heads, lengths}.intersection(needs(action.reads))]
    if len(users) != 1 or _called(block, heads, lengths) or longest.op != "constant" or longest.data >= _BYTES:
        return call
    (pack,) = users
    if not isinstance(pack, Pack) or payload[pack.item].stored != "u8" or _sources(pack.value) != {heads, lengths}:
        return call
    codes = graph.memory("scratch", "u8", heads.domain)
    (step,) = (step for step in block.steps if isinstance(step, Pass) and pack in step.actions)
    step.actions[step.actions.index(pack)] = Pack(graph.load(codes), pack.item, pack.lengths)
    head, length = graph.load(heads), graph.load(lengths)
    alone = graph.replace(pack.value, {length.number: graph.constant(1)})
    runs = PackedRuns(head, length, pack.value, alone)
    return Call(call.operator, call.arrays, call.scalars, (count, codes), runs)


def _unpacked(graph: Graph, block: Block, call: Call) -> Call:
    stores = [action for action in _actions(block) if isinstance(action, Store) and action.memory in call.arrays]
    found = {action.memory: action.value for action in stores}
    if len(found) != 2 or any(set(call.arrays).intersection(needs(action.reads)) for action in _actions(block)):
        return call
    value, count = (found[memory] for memory in call.arrays)
    (made,) = call.makes
    assert isinstance(made, Memory)
    sources = _sources(value, count)
    if len(sources) != 1 or not all(memory.stored == "u8" for memory in (made, *sources)):
        return call
    (source,) = sources
    return Call(call.operator, (source,), call.scalars, call.makes, UnpackedRuns(graph.load(source), value, count))


def _actions(block: Block) -> Iterable[Action]:
    return [action for step in block.steps if isinstance(step, Pass) for action in step.actions]


def _called(block: Block, *memories: Memory) -> bool:
    return any(set(memories).intersection(arrays_of(step)) for step in block.steps)


def _sources(*values: Value) -> set[Memory]:
    """The arrays whose elements they are functions of; none if they are made of anything else that varies."""
    parts = walk(values)
    elements = [part for part in parts if part.lanes and not part.operands]
    varies = any(part.op in ("pick", "spread") for part in parts) or any(part.op != "load" for part in elements)
    if varies or list(needs(part for part in parts if not part.lanes)):
        return set()
    return {part.data for part in elements}

"""What is computed, in order: passes over arrays, calls of operators that need a whole array, branches.

Consumers of values are put into passes as they come, each into the first pass over its arrays after all that it needs,
so that what one loop can do shares one. Single values have no place: an emitter writes them where they are first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from casync.compll.ir.graph import FLOAT, Domain, Memory, Value, walk

__all__ = [
    "Action",
    "Block",
    "Branch",
    "Call",
    "Deliver",
    "Item",
    "Leave",
    "Lose",
    "Pack",
    "Pass",
    "Program",
    "Reduce",
    "Scatter",
    "Select",
    "Store",
    "arrays_of",
    "changes",
    "float_sums",
    "loses",
    "needs",
    "readers",
]


@dataclass(frozen=True, eq=False)
class Action:
    """Something done with the elements of a pass."""

    value: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value,)

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Reduce(Action):
    """`result` = reduce(value, function); with `to` one for each chunk of the pass. `start`: the first element, where
    that is what its lanes begin with.
    """

    function: str
    result: Value | None = None
    to: Memory | None = None
    start: Value | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value,) if self.start is None else (self.value, self.start)

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return tuple(made for made in (self.result, self.to) if made is not None)

    @property
    def float_sum(self) -> bool:
        return self.function == "add" and self.value.kind == FLOAT


@dataclass(frozen=True, eq=False)
class Select(Action):
    """The elements' numbers and values where `condition` holds, in order; `count` is how many."""

    condition: Value
    count: Value
    index: Memory
    values: Memory

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.condition, self.value)

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return (self.count, self.index, self.values)


@dataclass(frozen=True, eq=False)
class Store(Action):
    """Each element to `memory`, where it may replace what was there (a state before)."""

    memory: Memory

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return (self.memory,)


@dataclass(frozen=True, eq=False)
class Scatter(Action):
    """memory[index] = value, over the indices' own pass; `memory` is what `before` becomes."""

    index: Value
    before: Memory
    memory: Memory

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.index, self.value)

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return (self.memory,)


@dataclass(frozen=True, eq=False)
class Pack(Action):
    """Item `item` of the payload, an array. `lengths`: of the arrays before it, which say where it lies."""

    item: int
    lengths: tuple[Value, ...] = ()

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value, *self.lengths)


@dataclass(frozen=True, eq=False)
class Deliver(Action):
    """What decode gives: an element, or with `index` that of some elements, the others being zero. `padded`: of whole
    chunks, of which the last may go on behind the end.
    """

    index: Value | None = None
    padded: bool = False

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value,) if self.index is None else (self.index, self.value)


@dataclass(frozen=True, eq=False)
class Leave(Action):
    """What the gradient was made of, before its factor, to the runtime's residual: later it is read from there."""


@dataclass(frozen=True, eq=False)
class Lose(Action):
    """What decode will make of each element is taken off it: the rest is left in the residual."""

    gradient: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.gradient, self.value)


@dataclass(eq=False)
class Pass:
    """One loop over `domain`, chunk by chunk if `chunk` is set."""

    domain: Domain
    chunk: Value | None = None
    actions: list[Action] = field(default_factory=list)

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return tuple(made for action in self.actions for made in action.makes)

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(value for action in self.actions for value in action.reads)

    @property
    def leaves(self) -> bool:
        return any(isinstance(action, Leave) for action in self.actions)


@dataclass(frozen=True, eq=False)
class Call:
    """An operator over whole arrays: `operator(arrays, scalars)`."""

    operator: str
    arrays: tuple[Memory, ...]
    scalars: tuple[Value, ...]
    makes: tuple[Value | Memory, ...]
    data: Any = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.scalars


@dataclass(frozen=True, eq=False)
class Branch:
    """One of two blocks. `merged`: what is the one value or memory after `then` and the other after `otherwise`."""

    condition: Value
    then: Block
    otherwise: Block
    merged: list[tuple[Any, Any, Any]]

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        stored = [made for block in (self.then, self.otherwise) for made in block.makes if _is_state(made)]
        return (*(made for made, _, _ in self.merged), *stored)

    @property
    def reads(self) -> tuple[Value, ...]:
        inside = [value for block in (self.then, self.otherwise) for step in block.steps for value in step.reads]
        return (self.condition, *inside, *(v for _, *sides in self.merged for v in sides if isinstance(v, Value)))


Step = Pass | Call | Branch


@dataclass
class Block:
    """`changed`: what the blocks around it have stored before it."""

    steps: list[Step] = field(default_factory=list)
    changed: frozenset[Value | Memory] = frozenset()

    @property
    def makes(self) -> tuple[Value | Memory, ...]:
        return tuple(made for step in self.steps for made in step.makes)

    def act(self, domain: Domain, actions: list[Action], chunk: Value | None = None, joining: bool = False) -> bool:
        """Put actions into the first pass that may have them, all into one, or with `joining` only if there is one.

        False: they are nowhere, as there is none, or a state that they read changes before all that they need is there.
        """
        if _disturbed(actions):
            return False
        needed = set(needs(value for action in actions for value in action.reads))
        needed |= {action.before for action in actions if isinstance(action, Scatter)}
        changed = set(_states(made for action in actions for made in action.makes))
        first, last = self._between(needed, changed)
        for step in self.steps[first : last + 1]:
            if isinstance(step, Pass) and _disturbed([*step.actions, *actions]):
                continue
            if isinstance(step, Pass) and step.domain is domain and _together(step, actions, chunk):
                step.actions += actions
                step.chunk = step.chunk or chunk
                return True
        if joining:
            return False
        if first <= last:
            self.steps.insert(last, Pass(domain, chunk, actions))
        return first <= last

    def call(self, call: Call) -> bool:
        """As early as it may be, so that passes which need its results can share loops with others. False: nowhere, as
        a state that it reads changes before the rest of what it needs is there.
        """
        first, last = self._between({*call.arrays, *needs(call.scalars)}, set())
        if first <= last:
            self.steps.insert(first, call)
        return first <= last

    def _between(self, needed: set[Value | Memory], changed: set[str]) -> tuple[int, int]:
        """From which step on, and up to which, what needs and changes this may be."""
        first, last = 0, len(self.steps)
        if any(_older(m, new) for m in needed for new in self.changed):
            return 0, -1
        for position, step in enumerate(self.steps):
            made = step.makes
            if needed.intersection(made):
                first = position + 1
            elif not changed.isdisjoint(_states((*needs(step.reads), *arrays_of(step), *made))):
                first = position  # what it reads must not be changed before; the same element in the same pass may
            if last == len(self.steps) and any(_older(m, new) for m in needed for new in made):
                last = position
        return first, last

    def without_idle(self, wanted: Iterable[Value | Memory]) -> None:
        """Leave out what nobody needs: `wanted` are the values and memories that are read afterwards."""
        needed = set(wanted)
        for step in reversed(list(self.steps)):
            if isinstance(step, Pass):
                step.actions = [one for one in step.actions if _lasts(one) or needed.intersection(one.makes)]
                if not step.actions:
                    self.steps.remove(step)
                    continue
            elif isinstance(step, Call):
                if not needed.intersection(step.makes):
                    self.steps.remove(step)
                    continue
            elif isinstance(step, Branch):
                step.merged[:] = [entry for entry in step.merged if entry[0] in needed]
                for side, block in ((1, step.then), (2, step.otherwise)):
                    left = [entry[side] for entry in step.merged]
                    memories = [one for one in left if isinstance(one, Memory)]
                    block.without_idle([*needed, *memories, *needs(v for v in left if isinstance(v, Value))])
                    needed.update(memories)
            needed.update(needs(step.reads))
            needed.update(arrays_of(step))


@dataclass(frozen=True)
class Item:
    """One value of a payload: a single `value`, or an array over `domain`, which a Pack writes; `memory`: where decode
    finds it. `counted`: its count precedes it.
    """

    stored: str
    value: Value | None = None
    domain: Domain | None = None
    memory: Memory | None = None
    counted: bool = False


@dataclass(frozen=True)
class Program:
    """One entry of a file, and the payload that it packs or unpacks. `singles`: what single states become."""

    block: Block
    payload: tuple[Item, ...] = ()
    singles: tuple[tuple[str, Value], ...] = ()

    @property
    def sparse(self) -> bool:
        """Whether it decodes elements by their index, all others being zero."""
        passes = [step for step in self.block.steps if isinstance(step, Pass)]
        return any(isinstance(a, Deliver) and a.index is not None for step in passes for a in step.actions)


def needs(values: Iterable[Value]) -> Iterator[Value | Memory]:
    """What steps must have made before these values are there, lengths of arrays included."""
    for value in walk(values):
        if value.op == "result":
            yield value
        elif isinstance(value.data, Memory):
            yield value.data
            yield from _lengths(value.data.domain)
        if value.domain is not None:
            yield from _lengths(value.domain)


def arrays_of(step: Step) -> Iterator[Memory]:
    """The arrays that calls read as they lie in memory."""
    if isinstance(step, Call):
        yield from step.arrays
    elif isinstance(step, Branch):
        for inner in (*step.then.steps, *step.otherwise.steps):
            yield from arrays_of(inner)


def readers(steps: Iterable[Step], memory: Memory) -> list[Step]:
    """Those of the steps that read it."""
    return [step for step in steps if any(one is memory for one in (*needs(step.reads), *arrays_of(step)))]


def _lengths(domain: Domain) -> Iterator[Value | Memory]:
    if domain.length is not None:
        yield from needs([domain.length])
    if domain.parent is not None:
        yield from _lengths(domain.parent)


def _together(step: Pass, actions: list[Action], chunk: Value | None) -> bool:
    """Loops over chunks have lanes of their own, which the sums over the whole do not fit."""
    if chunk is None and step.chunk is None:
        return True
    if None not in (chunk, step.chunk) and chunk is not step.chunk:
        return False
    return not any(isinstance(a, Reduce) and a.to is None for a in (*step.actions, *actions))


def _disturbed(actions: list[Action]) -> bool:
    """Whether one loop would read elements of a state that it has changed already: only an element that is stored where
    it was read is safe.
    """
    scattered = {action.memory.name for action in actions if isinstance(action, Scatter)}
    stored = {action.memory.name for action in actions if isinstance(action, Store) and _is_state(action.memory)}
    for value in walk(value for action in actions for value in action.reads):
        if value.lanes and isinstance(value.data, Memory) and _is_state(value.data):
            if value.data.name in scattered or (value.op == "pick" and value.data.name in stored):
                return True
    return False


def _lasts(action: Action) -> bool:
    if isinstance(action, (Store, Scatter)):
        return action.memory.place == "state"
    return isinstance(action, (Deliver, Lose, Pack))


def changes(step: Step) -> bool:
    """Whether it changes a state, or the residual for good."""
    return _loses(step) or _is_state(*step.makes)


def loses(program: Program) -> bool:
    """Whether what encodes leaves the residual."""
    return any(map(_loses, program.block.steps))


def _loses(step: Step) -> bool:
    return isinstance(step, Pass) and any(isinstance(action, Lose) for action in step.actions)


def float_sums(step: Step) -> bool:
    """Whether there are float sums over arrays in it."""
    if isinstance(step, Branch):
        return any(float_sums(inner) for block in (step.then, step.otherwise) for inner in block.steps)
    return isinstance(step, Pass) and any(
        isinstance(action, Reduce) and action.float_sum and action.result is not None for action in step.actions
    )


def _states(made: Iterable[Value | Memory]) -> Iterator[str]:
    """The names of the states among them."""
    return (one.name for one in made if isinstance(one, Memory) and one.place == "state")


def _is_state(*made: Value | Memory) -> bool:
    return any(isinstance(one, Memory) and one.place == "state" for one in made)


def _older(read: Value | Memory, made: Value | Memory) -> bool:
    """Whether `made` is the state `read` after a change."""
    if not (isinstance(read, Memory) and isinstance(made, Memory) and read.place == made.place == "state"):
        return False
    return read.name == made.name and read.number < made.number

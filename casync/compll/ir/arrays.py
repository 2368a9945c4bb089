"""Arrays: what they run over, and whether their elements are computed anew or read from where they were stored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from casync.compll import typed
from casync.compll.ir.choices import Choice
from casync.compll.ir.expressions import Expressions
from casync.compll.ir.graph import BIT, FLOAT, INT, UNIT, Domain, Memory, Value, walk
from casync.compll.ir.program import Action, Block, Call, Reduce, Store
from casync.compll.types import Length

__all__ = ["Arrays"]


class Arrays(Expressions):
    """Elements of arrays: a use of one becomes a step of `block`, and a stored one is read from memory from then on."""

    def __init__(self, codec: typed.Codec, choice: Choice) -> None:
        super().__init__(codec, choice)
        self.block = Block()
        self._domains: dict[str, Domain] = {}
        self._stored: dict[int, Value] = {}  # values that were stored, and where they are since

    @abstractmethod
    def repeated(self, value: Value, counts: Value, domain: Domain) -> Value | None:
        """An element of repeat(value, counts), if that is known without the operator."""

    # --- lengths

    def domain(self, length: Length) -> Domain:
        """Return what an array runs over whose length is known beforehand."""
        return self.domain_of(length, lambda: self._unknown(length))

    def _unknown(self, length: Length) -> Value:
        raise self.not_yet(f"an array of {length} here")

    def domain_of(self, length: Length, count: Callable[[], Value]) -> Domain:
        """The same for one that `count` tells."""
        if length.kind == "unit":
            return UNIT
        if length.text not in self._domains:
            if length.kind == "chunks":
                assert length.of is not None
                whole, chunk = self.domain(length.of), self._at_least(1, self.value(length.expression))
                chunks = self.graph.make("ceil_div", (self.length(whole), chunk), INT)
                found = Domain(chunks, whole, chunk)
            elif length.kind == "fixed" and length.expression is not None:
                found = Domain(self._at_least(0, self.value(length.expression)))
            else:
                found = Domain(count())
            self._domains[length.text] = found
        return self._domains[length.text]

    def _at_least(self, least: int, value: Value) -> Value:
        if value.op == "size" or (value.op == "fact" and value.data in ("rows", "cols")):
            return value
        if value.op == "constant":
            return value if value.data >= least else self.graph.constant(least)
        return self.graph.make("max", (self.graph.constant(least), value), INT)

    # --- steps

    def act(self, domain: Domain, build: Callable[[Callable[[Value], Value]], list[Action]],
            at: typed.Expression | typed.Statement | None = None) -> None:  # fmt: skip
        """Put the actions that `build` makes where they cost least; it gets a function that says how a value is read.

        Computed anew where a pass that computes all of it anyway can have them (or a short pass before the state
        changes), else from where it was stored.
        """
        again, stored = self._of_one_chunk(build, self.computed), self._of_one_chunk(build, self.consumed)
        if self.block.act(domain, again, _chunk_of(again), joining=domain is UNIT):
            return
        if not self.block.act(domain, stored, _chunk_of(stored)):
            raise self.not_yet("a state as it was before it was assigned", at)

    def _of_one_chunk(self, build: Callable[[Callable[[Value], Value]], list[Action]],
                      read: Callable[[Value], Value]) -> list[Action]:  # fmt: skip
        """A loop goes by chunks of one length; the values of others are looked up for each element."""
        actions = build(read)
        chunk = _chunk_of(actions)
        parts = walk(value for action in actions for value in action.reads)
        others = [part for part in parts if part.op == "spread" and part.data.chunk is not chunk]
        if not others:
            return actions
        known = {part.number: self.looked_up(part) for part in others}
        return build(lambda value: self.graph.replace(read(value), known))

    def add_call(self, call: Call, at: typed.Expression | None = None) -> None:
        if not self.block.call(call):
            raise self.not_yet("a state as it was before it was assigned", at)

    def consumed(self, value: Value) -> Value:
        """The value as it is read from memory, as far as it is there."""
        return self.graph.replace(self.computed(value), self._stored)

    def computed(self, value: Value) -> Value:
        """The value computed anew; what is sorted is in memory, and what is scattered if more is made of it."""
        makers = {"sorted": self._sorted, "scatter": self._scattered}
        parts = [part for part in walk([value]) if part.op == "sorted" or (part.op == "scatter" and part is not value)]
        return self.graph.replace(value, {part.number: makers[part.op](part) for part in parts})

    def alternative(self, value: Value, stored: Value) -> None:
        """The same in another way, for which the state need not be as it was."""
        self._stored[value.number] = stored

    def _sorted(self, value: Value) -> Value:
        if value.number in self._stored:
            return self._stored[value.number]
        (operand,) = value.operands
        array = self.in_memory(operand, "f32" if value.kind == FLOAT else "i32")
        memory, spare = (self.graph.memory("scratch", array.stored, array.domain) for _ in range(2))
        self.add_call(Call("sort", (array,), (), (memory, spare), value.data))
        self._stored[value.number] = self.loaded(memory, value)
        return self._stored[value.number]

    def _scattered(self, value: Value) -> Value:
        """An array of zeros but for some elements."""
        if value.number in self._stored:
            return self._stored[value.number]
        if value.data == "chunks":
            raise self.not_yet("scatter of chunks here")
        index, operand = value.operands
        stored = "f32" if value.kind == FLOAT else "i32"
        arrays = (self.in_memory(index, "i32"), self.in_memory(operand, stored))
        memory = self.graph.memory("scratch", stored, UNIT)
        self.add_call(Call("scatter", arrays, (self.length(UNIT),), (memory,)))
        self._stored[value.number] = self.loaded(memory, value)
        return self._stored[value.number]

    def picked(self, array: Value, index: Value, at: typed.Expression) -> Value:
        """One element; of a sorted array without sorting it."""
        if array.op != "sorted" or array.number in self._stored:
            last = self.graph.make("-", (self.length(array.domain), self.graph.constant(1)), INT)
            held = self.graph.make("max", (self.graph.constant(0), self.graph.make("min", (index, last), INT)), INT)
            return self._as_it_is_now(self.reindexed(array, held, at), at)
        if array.kind != FLOAT:
            raise self.not_yet("an element of sorted integers", at)
        (operand,) = array.operands
        result = self.graph.result(FLOAT)
        memory = self.in_memory(operand, "f32")
        self.add_call(Call("nth", (memory,), (self.consumed(index),), (result,), array.data), at)
        return result

    def _as_it_is_now(self, value: Value, at: typed.Expression) -> Value:
        """Elements of states are read in their turn, since single values are computed where they are first used."""
        known: dict[int, Value] = {}
        for part in walk([value]):
            if part.op == "pick" and isinstance(part.data, Memory) and part.data.place == "state":
                index = self.consumed(self.graph.replace(part.operands[0], known))
                known[part.number] = self.graph.result(part.kind)
                self.add_call(Call("pick", (part.data,), (index,), (known[part.number],)), at)
        return self.graph.replace(value, known)

    def stored_as(self, value: Value) -> str:
        """How a value is kept in scratch memory."""
        if value.op == "load" and isinstance(value.data, Memory) and value.data.stored in ("u8", "u16"):
            return value.data.stored
        return "f32" if value.kind == FLOAT else "i32"

    def in_memory_of(self, side: tuple[Block, dict[int, Value]], value: Value) -> Memory:
        """In the block of one side of an `if`, with what is stored there, which is nowhere on the other side."""
        outer = self.block, self._stored
        self.block, self._stored = side
        memory = self.in_memory(value, self.stored_as(value))
        self.block, self._stored = outer
        return memory

    def in_memory(self, value: Value, stored: str, at: typed.Expression | None = None) -> Memory:
        """All elements, where an operator can have them."""
        known = self.consumed(value)
        if known.op == "load" and isinstance(known.data, Memory) and known.data.stored == stored:
            return known.data
        if value.domain is None or (stored == "f32") != (value.kind == FLOAT):
            raise self.not_yet(f"an array of {value.kind} elements here", at)
        memory = self.graph.memory("scratch", stored, value.domain)
        self.act(value.domain, lambda read: [Store(read(value), memory)], at)
        self._stored[value.number] = self.loaded(memory, value)
        return memory

    def loaded(self, memory: Memory, value: Value) -> Value:
        """What `value` was stored as; bits are numbers in scratch memory."""
        load = self.graph.load(memory)
        return self.condition(load) if value.kind == BIT else load

    # --- elements of another place

    def reindexed(self, value: Value, index: Value, at: typed.Expression | None) -> Value:
        """The element of `value` at `index`: what it is made of, taken there."""
        again, stored = (self._taken(read(value), index, at) for read in (self.computed, self.consumed))
        if again is not stored and (
            index.lanes or index.op == "constant"
        ):  # a pass has its turn, a single value has not
            self.alternative(again, stored)
        return again

    def _taken(self, value: Value, index: Value, at: typed.Expression | None) -> Value:
        graph = self.graph
        known: dict[int, Value] = {}
        for part in walk([value]):
            if part.domain is None:
                known[part.number] = part
            elif part.op in ("gradient", "load"):
                known[part.number] = graph.make("pick", (index,), part.kind, part.data)
            elif part.op == "index":
                known[part.number] = index
            elif part.op == "same":
                known[part.number] = self.everywhere(part.operands[0], index.domain)
            elif part.op == "pick":
                known[part.number] = graph.make("pick", (known[part.operands[0].number],), part.kind, part.data)
            elif part.op in ("spread", "stochastic_floor", "draws"):
                raise self.not_yet("single elements of such an array", at)
            else:
                known[part.number] = graph.make(part.op, [known[o.number] for o in part.operands], part.kind, part.data)
        return known[value.number]

    def looked_up(self, spread: Value, at: typed.Expression | None = None) -> Value:
        """The value of an element's chunk, read for each element."""
        (value,) = spread.operands
        number = self.graph.make("index", kind=INT, domain=spread.domain)
        return self.reindexed(value, self.graph.make("/", (number, spread.data.chunk), INT), at)

    def everywhere(self, value: Value, domain: Domain | None) -> Value:
        """As an element of the domain, where it is the same for all of them."""
        if value.lanes or domain is None:
            return value
        return self.graph.make("same", (value,), value.kind, domain=domain)


def _chunk_of(actions: Sequence[Action]) -> Value | None:
    """The chunk whose values actions read or make, so that the loop goes chunk by chunk."""
    for action in actions:
        if isinstance(action, Reduce) and action.to is not None:
            return action.to.domain.chunk
    parts = walk(value for action in actions for value in action.reads)
    return next((part.data.chunk for part in parts if part.op == "spread"), None)

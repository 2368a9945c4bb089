"""From the typed tree to programs: what is left of a file once neighbouring operators are fused.

`lower` runs the entries of a file symbolically over one unit, for one choice of the parameters that decide widths.
Maps, views and samples stay expressions of an element (graph.py); what consumes them becomes steps (program.py). What
no code can be generated for raises a `NotAvailableError` that names it and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from casync.compll import typed
from casync.compll.ir.choices import Choice
from casync.compll.ir.coded import code_runs
from casync.compll.ir.expressions import Expressions
from casync.compll.ir.graph import BIT, FLOAT, INT, UNIT, Domain, Memory, Value, walk
from casync.compll.ir.merge import Merge
from casync.compll.ir.operators import OPERATORS, chunk_of, looked_up, reindexed
from casync.compll.ir.own import OwnPayload, lose
from casync.compll.ir.program import Action, Block, Branch, Call, Deliver, Item, Pack, Program, Scatter, Store, needs
from casync.compll.ir.residual import leave_early
from casync.compll.types import Array, Element, Length, Scalar
from casync.errors import NotAvailableError

__all__ = ["Lowered", "Lowering", "lower"]


@dataclass(frozen=True)
class Lowered:
    """`rounds`: encode, one program for each. `propose` and `agree`: init before and after its aggregate."""

    rounds: tuple[Program, ...]
    decode: Program
    propose: Program | None
    agree: Program | None


def lower(codec: typed.Codec, choice: Choice) -> Lowered:
    for what, there in (("merge", codec.merge), ("encode_merged", codec.encode_merged)):
        if there is not None:
            raise NotAvailableError(f"{codec.path}: no code can be generated for `{what}` yet")
    if codec.decode is None:
        raise NotAvailableError(f"{codec.path}: no code can be generated for a file without decode yet")
    rounds = tuple(_encode(codec, choice, number) for number in range(len(codec.encode.rounds)))
    decode = Lowering(codec, choice).decode()
    if codec.properties.feedback == "wrapper":
        leave_early(rounds, decode)
    propose = agree = None
    if codec.init is not None:
        propose, agree = Lowering(codec, choice).propose(), Lowering(codec, choice).agree()
    return Lowered(rounds, decode, propose, agree)


def _encode(codec: typed.Codec, choice: Choice, number: int) -> Program:
    """With what the residual becomes where that needs no decoding."""
    if codec.properties.feedback == "wrapper" and len(codec.encode.rounds) == 1:
        with suppress(NotAvailableError):
            return Lowering(codec, choice).encode(number, loses=True)
    return Lowering(codec, choice).encode(number)


class Lowering(Expressions):
    """One entry of a file, run symbolically."""

    def __init__(self, codec: typed.Codec, choice: Choice) -> None:
        super().__init__(codec, choice)
        self.block = Block()
        self.own: OwnPayload | None = None  # stands for the payload
        self._payload: list[Item] = []
        self.packed: list[Value] = []  # what the items are made of
        self._keeps = True  # whether a state that is assigned is changed at once
        self._domains: dict[str, Domain] = {}
        self._stored: dict[int, Value] = {}  # values that were stored, and where they are since
        self._memories: dict[str, Memory] = {}  # of states that are arrays, as they are now
        self._repeats = False  # whether the round was run before
        self.assigned: set[str] = set()  # states
        self._ends = False  # whether concat packs: not where encode runs again for decode

    # --- entries

    def encode(self, number: int, loses: bool = False) -> Program:
        """Round `number`: up to its aggregate, or to the payload and with `loses` what is left of the gradient."""
        self._ends = True
        self._rounds(self.codec.encode, number)
        end = self.codec.encode.rounds[number].ends
        if end is not None:
            self._pack(self._variable(end.variable), typed.Item(end.type, counted=False))
        if self.assigned and len(self.codec.encode.rounds) > 1:
            raise self.not_yet("a state that encode assigns although it aggregates")
        if loses:
            lose(self)
        return self._finished()

    def decode(self) -> Program:
        """What encode left equal on all ranks is computed again, from the result of the round before the last."""
        last = len(self.codec.encode.rounds) - 1
        self._rounds(self.codec.encode, last, repeats=last > 0)
        if last == 0:
            self._forget()
        self._keeps, self._repeats, self.assigned = False, False, set()
        output = self.decoded()
        value, index = output.operands[::-1] if output.op == "scatter" else (output, None)
        assert value.domain is not None
        self.act(value.domain, lambda read: [Deliver(read(value), None if index is None else read(index))])
        return self._finished()

    def decoded(self) -> Value:
        assert self.codec.decode is not None and self.codec.decode.output is not None
        self.local = {}
        self._statements(self.codec.decode.rounds[0].statements)
        return self._variable(self.codec.decode.output)

    def propose(self) -> Program:
        assert self.codec.init is not None
        first, *others = self.codec.init.rounds
        end = first.ends
        if end is None or len(others) != 1 or not isinstance(end.type, Scalar) or end.operation != "mean":
            raise self.not_yet("an init without one aggregate(..., mean) of a single value")
        self._rounds(self.codec.init, 0)
        self._payload, self.assigned = [Item("f32", self._variable(end.variable))], set()
        return self._finished()

    def agree(self) -> Program:
        """What single states become."""
        assert self.codec.init is not None
        self._rounds(self.codec.init, 1)
        agreed = self._finished()
        if agreed.block.steps:
            raise self.not_yet("an init that does more than agree on single values")
        return agreed

    def _forget(self) -> None:
        """What encode did; decode needs the lengths alone that a receiver knows, too."""
        self.block = Block()
        for names in (self.states, self._stored, self._memories):
            names.clear()
        self.forget_names()

    def forget_names(self) -> None:
        self.globals = {}
        lengths = self._domains.items()
        self._domains = {text: d for text, d in lengths if d.length is None or not list(needs([d.length]))}

    def _rounds(self, entry: typed.Entry, last: int, repeats: bool = False) -> None:
        """Run the rounds up to `last`; what the ones before aggregate is received. Steps that lead only to what was
        sent nobody needs then. Of rounds that were run before, and with `repeats` all were, no state is assigned again.
        """
        self.local = {entry.inputs[0]: self.graph.make("gradient", domain=UNIT)}
        for number in range(last + 1):
            self._repeats = repeats or number < last
            self._statements(entry.rounds[number].statements)
            end = entry.rounds[number].ends
            if number < last and end is not None:
                received = self._received(end, number)
                (self.globals if end.variable in self.globals else self.local)[end.variable] = received
                if end.variable in self.states:
                    self.states[end.variable] = received

    def _received(self, end: typed.Aggregate, number: int) -> Value:
        if not isinstance(end.type, Array):
            return self.graph.make("received", kind=self.kind(end.type.element), data=number)
        stored = self._width_stored(end.type.element)
        return self.graph.load(self.graph.memory("received", stored, self.domain(end.type.length), number))

    def _variable(self, name: str) -> Value:
        for names in (self.local, self.globals, self.states):
            if name in names:
                return self.consumed(names[name])
        return self.state(name)

    def _finished(self) -> Program:
        singles = [state.name for state in self.codec.states if isinstance(state.type, Scalar)]
        kept = tuple((name, self._variable(name)) for name in singles if name in self.assigned)
        packed = [item.value for item in self._payload if item.value is not None]
        code_runs(self.graph, self.block, self._payload)
        self.block.without_idle(needs([*packed, *(value for _, value in kept)]))
        return Program(self.block, tuple(self._payload), kept)

    # --- statements

    def _statements(self, statements: Sequence[typed.Statement]) -> None:
        for statement in statements:
            if isinstance(statement, typed.Assign):
                self._assign(statement)
            elif isinstance(statement, typed.Store):
                self._store(statement)
            elif isinstance(statement, typed.If):
                self._if(statement)
            else:
                raise self.not_yet(type(statement).__name__.lower(), statement)

    def _assign(self, statement: typed.Assign) -> None:
        value = statement.value
        if isinstance(value, typed.Apply) and value.operator == "concat":
            if self._ends:
                self._concat(value)
            return
        results = self.results(value)
        elements = self.elements(value)
        states: list[tuple[typed.Target, Value]] = []
        for target, result, element in zip(statement.targets, results, elements, strict=False):
            converted = self.convert(result, element, target.type.element)
            if target.storage == "state":
                states.append((target, converted))
            (self.globals if target.storage == "global" else self.local)[target.name] = converted
        if states:
            self._set_states(states, statement)

    def _set_states(self, states: Sequence[tuple[typed.Target, Value]], at: typed.Statement) -> None:
        """All at once: each may be made of what the others were."""
        if self._repeats and any(isinstance(target.type, Array) for target, _ in states):
            raise self.not_yet("a state that encode assigns although it aggregates", at)
        stores: list[tuple[Value, Memory]] = []
        for target, value in states:
            self.assigned.add(target.name)
            self.local.pop(target.name, None)
            if isinstance(target.type, Array):
                stores.append((value, self._changed(target.name)))
        if stores:
            domain = stores[0][0].domain
            assert domain is not None
            self.act(domain, lambda read: [Store(read(value), memory) for value, memory in stores], at)
        self.states |= {target.name: value for target, value in states}
        if self._keeps:
            self._stored |= {value.number: self.graph.load(memory) for value, memory in stores}

    def _changed(self, name: str) -> Memory:
        """What a state's memory is after the next change of it."""
        before = self._memory(name)
        self._memories[name] = self.graph.memory("state", "f32", before.domain, name)
        return self._memories[name]

    def _memory(self, name: str) -> Memory:
        if name not in self._memories:
            loaded = self.state(name)
            assert isinstance(loaded.data, Memory)
            self._memories[name] = loaded.data
        return self._memories[name]

    def _store(self, statement: typed.Store) -> None:
        """`array[index] = value`: of a state that is in memory."""
        target = statement.target
        if target.storage != "state" or not isinstance(statement.index.type, Array) or self._repeats:
            raise self.not_yet("elements of an array that is no state", statement)
        index, value = self.value(statement.index), self.value(statement.value)
        assert index.domain is not None
        self.assigned.add(target.name)
        before, memory = self._memory(target.name), self._changed(target.name)
        self.act(index.domain, lambda read: [Scatter(read(value), read(index), before, memory)], statement)
        self.states[target.name] = self.graph.load(memory)

    def _if(self, statement: typed.If) -> None:
        condition = self.consumed(self.condition(self.value(statement.condition)))
        for state in self.codec.states:
            self.state(state.name)  # known on both sides
        outer, before = self.block, (dict(self.local), dict(self.globals), dict(self.states), dict(self._stored))
        sides, memories = [], dict(self._memories)
        for statements in (statement.then, statement.otherwise):
            self.local, self.globals, self.states = (dict(names) for names in before[:3])
            self._stored = dict(before[3])
            self.block = Block(changed=outer.changed | set(outer.makes))
            self._statements(statements)
            sides.append((self.block, (self.local, self.globals, self.states), self._stored))
        self.block, self._stored = outer, before[3]
        if self._memories != memories:
            raise self.not_yet("a state that is assigned inside of an `if`", statement)
        (then, yes, stored), (otherwise, no, stored_otherwise) = sides
        merge = Merge(self, condition, (then, stored), (otherwise, stored_otherwise))
        self.local, self.globals, self.states = (
            {name: merge.one(a[name], b[name], statement) for name in a if name in b}
            for a, b in zip(yes, no, strict=True)
        )
        if then.steps or otherwise.steps:
            self.block.steps.append(Branch(condition, then, otherwise, merge.merged))

    # --- payloads

    def _concat(self, call: typed.Apply) -> None:
        for item, argument in zip(self.codec.payload, call.arguments, strict=True):
            self._pack(self.value(argument), item)

    def _pack(self, value: Value, item: typed.Item) -> None:
        stored = self._width_stored(item.type.element)
        self.packed.append(value)
        if value.domain is None:
            value = self.consumed(value)
            self._payload.append(Item(stored if stored in ("f32", "i32", "u16") else "u8", value))
            return
        number = len(self._payload)
        lengths = tuple(i.domain.length for i in self._payload if i.domain is not None and i.domain.length is not None)
        self.act(value.domain, lambda read: [Pack(read(value), number, lengths)])
        self._payload.append(Item(stored, domain=value.domain, counted=item.counted))

    def _extracted(self) -> tuple[Value, ...]:
        return tuple(self._extract(number, item) for number, item in enumerate(self.codec.payload))

    def _extract(self, number: int, item: typed.Item) -> Value:
        stored = self._width_stored(item.type.element)
        if not isinstance(item.type, Array):
            field = self.graph.make("field", kind=self.kind(item.type.element), data=number)
            self._payload.append(Item(stored if stored in ("f32", "i32", "u16") else "u8", field))
            return field
        domain = self.domain_of(item.type.length, lambda: self.graph.make("count", kind=INT, data=number))
        memory = self.graph.memory("payload", stored, domain, number)
        self._payload.append(Item(stored, domain=domain, memory=memory, counted=item.counted))
        return self.graph.load(memory)

    def _width_stored(self, element: Element) -> str:
        bits = self.choice.bits(element)
        if element.floating:
            if bits != 32:
                raise self.not_yet(f"the type {element}")
            return "f32"
        if bits not in (1, 2, 4, 8, 16, 32):
            raise self.not_yet(f"elements of {bits} bits in a payload")
        if element.kind == "int" and bits != 32:
            raise self.not_yet(f"the type {element} in a payload")
        return "i32" if bits == 32 else f"u{bits}"

    # --- lengths

    def domain(self, length: Length) -> Domain:
        """What an array of a length that is known beforehand runs over."""
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

    # --- for operators

    def operator(self, call: typed.Apply) -> tuple[Value, ...]:
        if call.operator == "extract":
            return self._extracted() if self.own is None else self.own.extracted()
        if call.operator not in OPERATORS:
            raise self.not_yet(f"the operator {call.operator}", call)
        return OPERATORS[call.operator](self, call)

    def act(self, domain: Domain, build: Callable[[Callable[[Value], Value]], list[Action]],
            at: typed.Expression | typed.Statement | None = None) -> None:  # fmt: skip
        """Put the actions that `build` makes where they cost least; it gets a function that says how a value is read.

        Computed anew where a pass that computes all of it anyway can have them (or a short pass before the state
        changes), else from where it was stored.
        """
        again, stored = self._of_one_chunk(build, self.computed), self._of_one_chunk(build, self.consumed)
        if self.block.act(domain, again, chunk_of(again), joining=domain is UNIT):
            return
        if not self.block.act(domain, stored, chunk_of(stored)):
            raise self.not_yet("a state as it was before it was assigned", at)

    def _of_one_chunk(self, build: Callable[[Callable[[Value], Value]], list[Action]],
                      read: Callable[[Value], Value]) -> list[Action]:  # fmt: skip
        """A loop goes by chunks of one length; the values of others are looked up for each element."""
        actions = build(read)
        chunk = chunk_of(actions)
        parts = walk(value for action in actions for value in action.reads)
        others = [part for part in parts if part.op == "spread" and part.data.chunk is not chunk]
        if not others:
            return actions
        known = {part.number: looked_up(self, part) for part in others}
        return build(lambda value: self.graph.replace(read(value), known))

    def add_call(self, call: Call, at: typed.Expression | None = None) -> None:
        if not self.block.call(call):
            raise self.not_yet("a state as it was before it was assigned", at)

    def consumed(self, value: Value) -> Value:
        """The value as it is read from memory, as far as it is there."""
        return self.graph.replace(self.computed(value), self._stored)

    def computed(self, value: Value) -> Value:
        """The value computed anew; what is sorted is in memory."""
        parts = [part for part in walk([value]) if part.op == "sorted"]
        return self.graph.replace(value, {part.number: self._sorted(part) for part in parts})

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

    def picked(self, array: Value, index: Value, at: typed.Expression) -> Value:
        """One element; of a sorted array without sorting it."""
        if array.op != "sorted" or array.number in self._stored:
            last = self.graph.make("-", (self.length(array.domain), self.graph.constant(1)), INT)
            held = self.graph.make("max", (self.graph.constant(0), self.graph.make("min", (index, last), INT)), INT)
            return self._as_it_is_now(reindexed(self, array, held, at), at)
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

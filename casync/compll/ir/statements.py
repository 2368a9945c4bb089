"""The statements of an entry, run symbolically, and the payload that they pack or read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from casync.compll import typed
from casync.compll.ir.arrays import Arrays
from casync.compll.ir.choices import Choice
from casync.compll.ir.graph import INT, Domain, Memory, Value
from casync.compll.ir.merge import Merge
from casync.compll.ir.operators import OPERATORS
from casync.compll.ir.program import Block, Branch, Item, Pack, Scatter, Store
from casync.compll.types import Array, Element

if TYPE_CHECKING:
    from casync.compll.ir.own import OwnPayload

__all__ = ["Statements"]

_ROUNDED = {"f16": "to_half", "bf16": "to_bfloat16"}
"""The conversion to what is stored, where it rounds."""


class Statements(Arrays):
    """`own` stands for the payload where there is one: decode runs behind encode then."""

    def __init__(self, codec: typed.Codec, choice: Choice) -> None:
        super().__init__(codec, choice)
        self.own: OwnPayload | None = None
        self._payload: list[Item] = []
        self.packed: list[Value] = []  # what the items are made of
        self._keeps = True  # whether a state that is assigned is changed at once
        self._memories: dict[str, Memory] = {}  # of states that are arrays, as they are now
        self._repeats = False  # whether the round was run before
        self.assigned: set[str] = set()  # states
        self._ends = False  # whether concat packs: not where encode runs again for decode

    def operator(self, call: typed.Apply) -> tuple[Value, ...]:
        if call.operator == "extract":
            return self._extracted() if self.own is None else self.own.extracted()
        if call.operator not in OPERATORS:
            raise self.not_yet(f"the operator {call.operator}", call)
        return OPERATORS[call.operator](self, call)

    def repeated(self, value: Value, counts: Value, domain: Domain) -> Value | None:
        return None if self.own is None else self.own.repeated(value, counts, domain)

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
        """Return the memory of a state after its next change."""
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
        self.packed.append(value)
        if value.domain is None:
            self._payload.append(Item(self._single_stored(item.type.element), self.consumed(value)))
            return
        stored = self._width_stored(item.type.element)
        packed = value.operands[0] if value.op == _ROUNDED.get(stored) else value  # what is stored is rounded anyway
        number = len(self._payload)
        lengths = tuple(i.domain.length for i in self._payload if i.domain is not None and i.domain.length is not None)
        self.act(value.domain, lambda read: [Pack(read(packed), number, lengths)])
        self._payload.append(Item(stored, domain=value.domain, counted=item.counted))

    def _extracted(self) -> tuple[Value, ...]:
        return tuple(self._extract(number, item) for number, item in enumerate(self.codec.payload))

    def _extract(self, number: int, item: typed.Item) -> Value:
        if not isinstance(item.type, Array):
            field = self.graph.make("field", kind=self.kind(item.type.element), data=number)
            self._payload.append(Item(self._single_stored(item.type.element), field))
            return field
        domain = self.domain_of(item.type.length, lambda: self.graph.make("count", kind=INT, data=number))
        stored = self._width_stored(item.type.element)
        memory = self.graph.memory("payload", stored, domain, number)
        self._payload.append(Item(stored, domain=domain, memory=memory, counted=item.counted))
        return self.graph.load(memory)

    def _width_stored(self, element: Element) -> str:
        bits = self.choice.bits(element)
        if element.floating:
            return {"float": "f32", "half": "f16", "bfloat16": "bf16"}[element.name]
        if bits not in (1, 2, 4, 8, 16, 32):
            raise self.not_yet(f"elements of {bits} bits in a payload")
        if element.kind == "int" and bits not in (8, 32):
            raise self.not_yet(f"the type {element} in a payload")
        return f"{'i' if element.kind == 'int' or bits == 32 else 'u'}{bits}"

    def _single_stored(self, element: Element) -> str:
        """How a single value of a payload is stored: codes of a few bits in a byte."""
        stored = self._width_stored(element)
        if stored in ("f16", "bf16", "i8"):
            raise self.not_yet(f"a single {element} in a payload")
        return stored if stored in ("f32", "i32", "u16") else "u8"

"""From the typed tree to programs: what is left of a file once neighbouring operators are fused.

`lower` runs the entries of a file symbolically over one unit, for one choice of the parameters that decide widths.
Maps, views and samples stay expressions of an element (graph.py); what consumes them becomes steps (program.py). What
no code can be generated for raises a `NotAvailableError` that names it and its place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from casync.compll import typed
from casync.compll.ir.choices import Choice
from casync.compll.ir.coded import code_runs
from casync.compll.ir.graph import UNIT, Value
from casync.compll.ir.own import lose
from casync.compll.ir.program import Block, Deliver, Item, Program, needs
from casync.compll.ir.residual import leave_early
from casync.compll.ir.statements import Statements
from casync.compll.types import Array, Scalar
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


class Lowering(Statements):
    """One entry of a file, run symbolically."""

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
        chunks = output.op == "scatter" and output.data == "chunks"
        self.act(value.domain, lambda read: [Deliver(read(value), None if index is None else read(index), chunks)])
        return self._finished()

    def decoded(self) -> Value:
        assert self.codec.decode is not None and self.codec.decode.output is not None
        self.local = {}
        self._decodes = True
        self._statements(self.codec.decode.rounds[0].statements)
        self._decodes = False
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
        stored = self._width_stored(end.type.element)
        if not isinstance(end.type, Array):
            if stored != "f32":
                raise self.not_yet(f"aggregate of a single {end.type.element}")
            return self.graph.make("received", data=number)
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

"""The C++ of a program's steps as a team of threads takes them: a barrier stands at the end of each.

A pass may be several loops. Those that only read come first: reductions by the fixed tree, where a thread has a lane of
a block; selections and packed codes, where it has neighbours. In the last one it has single elements, and may store
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from ctypes import c_float
from dataclasses import replace

from casync.compll.cpu.actions import small_chunk
from casync.compll.cpu.steps import Steps as Common
from casync.compll.cpu.text import SCALAR_TYPES
from casync.compll.cpu.values import elements_inside, pointer
from casync.compll.cuda.calls import call_text
from casync.compll.ir.coded import PackedRuns, UnpackedRuns
from casync.compll.ir.graph import BIT, FLOAT, Memory, Value
from casync.compll.ir.program import (
    Action,
    Block,
    Call,
    Deliver,
    Leave,
    Lose,
    Pack,
    Pass,
    Reduce,
    Scatter,
    Select,
    Step,
    Store,
)

__all__ = ["Steps"]

_REDUCTIONS = {"add": "SumOf", "maxAbs": "LargestMagnitude", "smaller": "Extreme<Smaller>",
               "greater": "Extreme<Larger>"}  # fmt: skip
_NEUTRAL = {"smaller": "kInfinity", "greater": "-kInfinity"}


class Steps(Common):
    """Single values and branches are those of the CPU. `packed_items`: items of the payload with codes of less than a
    byte; `reductions`: the most that share a pass.
    """

    def __init__(self, leaves: dict[str, str], path: str, failed: str, packed_items: Iterable[int] = ()) -> None:
        super().__init__(leaves, path, failed)
        self._packed_items = frozenset(packed_items)
        self._index = "i"
        self.reductions = 1

    def ordered(self, block: Block) -> list[Step]:
        return block.steps  # each is by all threads of the team

    def _text(self, value: Value, wide: bool) -> str:
        if value.op == "constant" and value.kind == FLOAT:
            held = c_float(value.data).value  # nvcc warns of digits that a float cannot hold
            if not math.isfinite(held):
                return "kNan" if math.isnan(held) else f"{'-' * (held < 0)}kInfinity"
            value = replace(value, data=held)
        return super()._text(value, wide)

    def _leaf(self, value: Value, wide: bool) -> str:
        operands = [f"v{operand.number}" for operand in value.operands]
        if value.op == "gradient":
            return f"gradient{'_left' * self.left}(job, {self._index})"
        if value.op == "load":
            return f"at({pointer(value.data)}, {self._index})"
        if value.op == "index":
            return f"static_cast<std::int32_t>({self._index})"
        if value.op == "pick" and value.data is None:
            return f"gradient_at{'_left' * self.left}(job, {operands[0]})"
        return super()._leaf(value, False)

    def _call(self, call: Call) -> None:
        for memory in call.arrays:
            self._fits(memory.domain)
        arguments = [self.single(value) for value in call.scalars]
        lengths = [self.length(memory.domain) for memory in call.arrays]
        for made in call.makes:
            if isinstance(made, Value):
                self.line(f"{SCALAR_TYPES[made.kind]} v{made.number} = 0;")
                self.have(made)
        self.line(*call_text(call, lengths, arguments, self._functions(call), self._failed))

    def _functions(self, call: Call) -> list[str]:
        """Return the lambdas that put a run away, or give a run's value and its length."""
        if isinstance(call.data, PackedRuns):
            runs, (_, codes) = call.data, call.makes
            assert isinstance(codes, Memory)
            body = self._body(runs.code, (runs.head, runs.length))
            put = f"put({pointer(codes)}, place, v{runs.code.number});"
            return [_put(f"v{runs.head.number}", f"v{runs.length.number}", f"{body} {put}")]
        if call.operator == "runlength":
            _, heads, lengths = call.makes
            assert isinstance(heads, Memory) and isinstance(lengths, Memory)
            put = f"put({pointer(heads)}, place, head); put({pointer(lengths)}, place, length);"
            return [_put("head", "length", put)]
        if isinstance(call.data, UnpackedRuns):
            code = call.data.code
            read = f"const std::int32_t v{code.number} = at({pointer(call.arrays[0])}, i);"
            return [f"[&](std::int64_t i) {{ {read} {self._body(value, (code,))} return v{value.number}; }}"
                    for value in (call.data.value, call.data.count)]  # fmt: skip
        if call.operator == "repeat":
            return [f"[&](std::int64_t i) {{ return at({pointer(memory)}, i); }}" for memory in call.arrays]
        return []

    def _body(self, value: Value, known: Sequence[Value]) -> str:
        """The lines that compute it from what is known."""
        inside = [part for part in elements_inside([value]) if part not in known]
        for part in inside:
            for operand in part.operands:
                if not operand.lanes:
                    self.single(operand)
        return " ".join(map(self._define, inside))

    # --- passes

    def _pass(self, step: Pass) -> None:
        number, self._passes = self._passes, self._passes + 1
        length = f"length{number}"
        self.line(f"const std::int64_t {length} = {self.length(step.domain)};")
        if any(isinstance(made, Memory) and made.place == "scratch" for made in step.makes):
            self._fits(step.domain)
        if step.domain.length is not None and any(isinstance(action, Reduce) for action in step.actions):
            self.line(f"if ({length} > 2 * room) {self._failed}")
        self._singles_of(step)
        each = length
        if step.chunk is not None:
            each = f"each{number}"
            self.line(f"[[maybe_unused]] const std::int64_t {each} = larger({self.single(step.chunk)}, 1);")
        small = small_chunk(step.chunk)
        self._reduce([a for a in step.actions if isinstance(a, Reduce) and not small], length, each)
        for action in step.actions:
            if isinstance(action, Reduce) and small:
                self._sum_small_chunks(action, length, each)
            elif isinstance(action, Select):
                self._select_elements(action, length, each)
            elif isinstance(action, Pack):
                self.packed(action.item)
                if action.item in self._packed_items:
                    self.line(f"pack(team, p{action.item}, {length}, {self._function([action.value], each)});")
        self._store([a for a in step.actions if self._stores(a)], number, length, each)
        self.left |= step.leaves

    def _stores(self, action: Action) -> bool:
        packs = isinstance(action, Pack) and action.item not in self._packed_items
        return packs or isinstance(action, (Store, Scatter, Deliver, Leave, Lose))

    def _singles_of(self, step: Pass) -> None:
        """Emit the single values that the elements of the pass need, before its loops."""
        inside = elements_inside(step.reads)
        inside += [part for value in inside if value.op == "spread" for part in elements_inside(value.operands)]
        for value in inside:
            for operand in value.operands:
                if not operand.lanes:
                    self.single(operand)
            if isinstance(value.data, Memory):
                self.length(value.data.domain)
        for action in step.actions:
            for value in action.reads:
                if not value.lanes:
                    self.single(value)

    def _elements(self, values: Sequence[Value], each: str) -> list[str]:
        """Return the lines that compute them for element i."""
        lines = []
        inside = elements_inside(values)
        if any(value.op == "spread" for value in inside):
            lines.append(f"[[maybe_unused]] const std::int64_t chunk = i / {each};")
        of_chunk: list[Value] = []
        for value in inside:
            if value.op == "spread":
                more = [part for part in elements_inside(value.operands) if part not in of_chunk]
                self._index = "chunk"
                lines += [self._define(part) for part in more]
                self._index = "i"
                of_chunk += more
                lines.append(f"const {SCALAR_TYPES[value.kind]} v{value.number} = v{value.operands[0].number};")
            else:
                lines.append(self._define(value))
        return lines

    def _define(self, value: Value) -> str:
        if value.op == "stochastic_floor":
            site, least, most = value.data
            text = (f"stochastic_floor(v{value.operands[0].number}, draw_at(facts.key, {site}U, {self._index}), "
                    f"{least}.0F, {most}.0F)")  # fmt: skip
        elif value.op == "draws":
            site, shared = value.data
            text = f"{'shared_' * shared}draw_at(facts.key, {site}U, {self._index})"
        else:
            text = self._text(value, False)
        return f"[[maybe_unused]] const {SCALAR_TYPES[value.kind]} v{value.number} = {text};"

    def _function(self, values: Sequence[Value], each: str) -> str:
        """Return a lambda that gives the first of the values for element i."""
        body = " ".join(self._elements(values, each))
        return f"[&]([[maybe_unused]] std::int64_t i) {{ {body} return {_shown(values[0])}; }}"

    # --- loops that read

    def _reduce(self, actions: Sequence[Reduce], length: str, each: str) -> None:
        if not actions:
            return
        self.reductions = max(self.reductions, len(actions))
        self.line(f"const Blocks blocks_of_{length}{{{length}, {each}}};")
        for position, action in enumerate(actions):
            self.line(self._reduction(action, position, length))
        self.line(f"tree(team, blocks_of_{length}, [&]([[maybe_unused]] std::int64_t i) {{")
        self.line(*(f"  {line}" for line in self._elements([action.value for action in actions], each)))
        self.line(*(f"  {_tree(action)}.see({_shown(action.value)});" for action in actions))
        self.line(f"}}, {', '.join(map(_tree, actions))});")
        for action in actions:
            if action.result is not None:
                self.line(f"[[maybe_unused]] const {SCALAR_TYPES[action.result.kind]} v{action.result.number} = "
                          f"{_tree(action)}.value;")  # fmt: skip
                self.have(action.result)

    def _reduction(self, action: Reduce, position: int, length: str) -> str:
        """The declaration of what is shown the elements."""
        if action.function not in _REDUCTIONS or (action.function != "add" and action.value.kind != "float"):
            raise self.not_yet(f"reduce(..., {action.function}) of {action.value.kind} elements")
        type_ = _REDUCTIONS[action.function]
        if action.function == "add":
            type_ += f"<{'float' if action.float_sum else 'std::int32_t'}>"
        work = f"work + {position} * work_of(room)" if position else "work"
        if action.to is not None:
            return f"{type_} {_tree(action)}{{{work}, {pointer(action.to)}, blocks_of_{length}}};"
        if action.function in _NEUTRAL:
            assert action.start is not None
            start = f"{length} > 0 ? {self.single(action.start)} : {_NEUTRAL[action.function]}"
            return f"{type_} {_tree(action)}{{{work}, {start}}};"
        return f"{type_} {_tree(action)}{{{work}}};"

    def _sum_small_chunks(self, action: Reduce, length: str, each: str) -> None:
        if action.function != "add" or action.to is None or action.to.stored == "f32":
            raise self.not_yet("reduce of small chunks but for integers and add")
        shown = self._function([action.value], each)
        self.line(f"sum_chunks(team, Blocks{{{length}, {each}}}, {pointer(action.to)}, {shown});")

    def _select_elements(self, action: Select, length: str, each: str) -> None:
        count = f"v{action.count.number}"
        chosen = self._function([action.condition], each)
        self.line(
            f"const auto {count} = static_cast<std::int32_t>(select(team, {length}, {chosen},",
            "    [&](std::int64_t i, std::int64_t place) {",
            *(f"      {line}" for line in self._elements([action.value], each)),
            f"      put({pointer(action.index)}, place, i);",
            f"      put({pointer(action.values)}, place, v{action.value.number});",
            "    }));",
        )
        self.have(action.count)

    # --- the loop that stores

    def _store(self, actions: Sequence[Action], number: int, length: str, each: str) -> None:
        if not actions:
            return
        scattered = [a for a in actions if isinstance(a, Scatter) or (isinstance(a, Deliver) and a.index is not None)]
        if any(isinstance(action, Deliver) for action in scattered):
            self.line("deliver_zeros(team, job, into);")
        if scattered:
            self.line(f"bool outside{number} = false;")
        self.line(f"for (std::int64_t i = team.rank(); i < {length}; i += team.size()) {{")
        self.line(*(f"  {line}" for line in self._elements([v for a in actions for v in a.reads], each)))
        self.line(*(f"  {self._one(action, f'outside{number}')}" for action in actions))
        self.line("}", "team.barrier();")
        if scattered:
            self.line(f"if (team.any(outside{number})) {self._failed}")

    def _one(self, action: Action, outside: str) -> str:
        value = f"v{action.value.number}"
        if isinstance(action, Pack):
            return f"put(p{action.item}, i, {value});"
        if isinstance(action, Store):
            keeps = "if (job.keep) " if self.keeps_on_request and action.memory.place == "state" else ""
            return f"{keeps}put({pointer(action.memory)}, i, {value});"
        if isinstance(action, Leave):
            return "leave(job, i);"
        if isinstance(action, Lose):
            return f"lose(job, i, {value});"
        if isinstance(action, Scatter):
            length = self.length(action.memory.domain)
            return f"{outside} |= !put_one({pointer(action.memory)}, {length}, v{action.index.number}, {value});"
        assert isinstance(action, Deliver)
        if action.index is not None:
            index = f"v{action.index.number}"
            skipped = f"{index} < facts.n && " * action.padded
            return f"{outside} |= {skipped}!deliver_one(job, into, {index}, {value});"
        return f"deliver(job, into, i, {value});"


def _put(head: str, length: str, body: str) -> str:
    return f"[&](std::int64_t place, std::int32_t {head}, [[maybe_unused]] std::int32_t {length}) {{ {body} }}"


def _shown(value: Value) -> str:
    """A number, of a bit too."""
    return f"to_int(v{value.number})" if value.kind == BIT else f"v{value.number}"


def _tree(action: Reduce) -> str:
    if action.to is not None:
        return f"tree_of_{pointer(action.to)}"
    assert action.result is not None
    return f"tree{action.result.number}"

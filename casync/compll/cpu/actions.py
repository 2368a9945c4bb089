"""The C++ of what a pass does with its values: before its loop, for sixteen elements, after a block, after the loop."""

from __future__ import annotations

from casync.compll.cpu.reduce import Reduction
from casync.compll.cpu.text import LANE_TYPES, name_of
from casync.compll.cpu.values import NUMBERS, Values, elements_inside, pointer, shift_of
from casync.compll.ir.graph import BIT, Memory, Value
from casync.compll.ir.operators import LONGEST_SMALL_CHUNK
from casync.compll.ir.program import Action, Deliver, Leave, Lose, Pack, Pass, Reduce, Scatter, Select, Store

__all__ = ["RESIDUAL", "Actions", "small_chunk"]

RESIDUAL = "job.residual"
"""The runtime's, among the names of states."""


class Actions(Values):
    """Prints a pass's actions too."""

    def __init__(self, leaves: dict[str, str], path: str, failed: str) -> None:
        super().__init__(leaves, path, failed)
        self.all_inside = ""  # what says whether all places of a scatter were inside
        self.kept: dict[str, str] = {}  # states and the residual -> where the pass keeps what they were
        self.keeps_on_request = False  # whether states are assigned only if job.keep says so

    def before(self, action: Action, length: str) -> None:
        if isinstance(action, Reduce) and action.to is None:
            self.line(*Reduction(action).start(length))
        elif isinstance(action, Deliver) and action.index is not None:
            self.line("deliver_zeros<kInto>(job);", "Finiteness delivered;")
        elif isinstance(action, Select):
            self.line(f"std::int32_t v{action.count.number} = 0;")
        elif isinstance(action, Pack):
            self.packed(action.item)

    def act(self, action: Action, step: Pass) -> None:
        value = name_of(action.value, True)
        whole = f"to_int({value})" if action.value.kind == BIT else value
        if isinstance(action, Reduce):
            if action.to is not None and small_chunk(step.chunk):
                self.line(f"put(staged{action.to.number}, i - block, 16, {whole});")
            else:
                self.line(Reduction(action).accumulate())
        elif isinstance(action, Select):
            self._select(action, whole, self.read_again(action, step) is not None)
        elif isinstance(action, Store):
            if action.memory.place == "state" and action.memory.name in self.kept:
                before = f"elements({pointer(action.memory)}, i, count)"
                kept = self.kept.pop(action.memory.name)  # as it was before its first change
                self.line(f"put({kept}, i, count, {before});")
            keeps = "if (job.keep) " if self.keeps_on_request and action.memory.place == "state" else ""
            self.line(f"{keeps}put({pointer(action.memory)}, i, count, {whole});")
        elif isinstance(action, Leave):
            self.line("if constexpr (kFeedback) {")
            if RESIDUAL in self.kept:
                self.line(f"  put({self.kept[RESIDUAL]}, i, count, elements(residual, i, count));")
            self.line("  put(residual, i, count, x);", "}")
        elif isinstance(action, Scatter):
            to = pointer(action.memory)
            self._scatter(action.index, value, self.length(action.memory.domain), f"{to}[place] = one")
        elif isinstance(action, Deliver) and action.index is not None:
            if action.padded and (shift := shift_of(action.index)) is not None:
                at = f"std::int64_t{{v{shift.number}}} + i"
                self.line(f"{self.all_inside} &= deliver_neighbours<kInto>(job, {at}, count, {value}, delivered);")
                return
            each = "delivered.see(deliver_one<kInto>(job, place, one))"
            self._scatter(action.index, value, "facts.n", each, padded=action.padded)
        elif isinstance(action, Deliver):
            self.line(f"deliver<kInto>(job, i, count, {value}, check);")
        elif isinstance(action, Lose):
            self.line("if constexpr (kFeedback) {")
            if RESIDUAL in self.kept:
                self.line(f"  put({self.kept[RESIDUAL]}, i, count, elements(residual, i, count));")
            self.line(f"  lose(residual, i, count, x, {value}, mid);", "}")
        else:
            assert isinstance(action, Pack)
            self.line(f"put(p{action.item}, i, count, {value});")

    def _select(self, action: Select, value: str, later: bool) -> None:
        """Behind what was chosen before; `later`: after the block, when nothing depends on a guess any more."""
        condition, kept = name_of(action.condition, True), f"k{action.count.number}"
        self.line(f"const Mask16 {kept} = whole ? {condition} : both({condition}, first_lanes(count));")
        if later:
            self.line(f"c{action.count.number}.see(i - block, {kept});")
        else:
            self.line(f"if (any({kept})) {{")
            with self._inside():
                self._append(action, kept, value)
            self.line("}")

    def _append(self, action: Select, mask: str, value: str) -> None:
        count = f"v{action.count.number}"
        self.line(
            f"append({mask}, {NUMBERS}, {pointer(action.index)} + {count});",
            f"{count} += static_cast<std::int32_t>(append({mask}, {value}, {pointer(action.values)} + {count}));",
        )

    def append_chosen(self, action: Select, step: Pass) -> None:
        self.line(f"c{action.count.number}.each([&](std::int64_t from, const Mask16& chosen) {{")
        with self._inside():
            self.line("const std::int64_t i = block + from;",
                      "[[maybe_unused]] const std::int64_t count = stop - i < 16 ? stop - i : 16;")  # fmt: skip
            checks, self.checks = self.checks, False
            for value, text in self.read_again(action, step) or ():
                if text is None:
                    self._element(value)
                else:
                    self.line(f"const {LANE_TYPES[value.kind]} v{value.number} = {text};")
            self.checks = checks
            chosen = name_of(action.value, True)
            self._append(action, "chosen", f"to_int({chosen})" if action.value.kind == BIT else chosen)
        self.line("});")

    def read_again(self, action: Select, step: Pass) -> list[tuple[Value, str | None]] | None:
        """The values that make what is chosen after the block is done, those that it has stored from there: with their
        text. None: not all of it is to be had any more.
        """
        stored: dict[int, str] = {}
        for one in step.actions:
            if isinstance(one, Store) and one.memory.stored in ("f32", "i32") and not self.keeps_on_request:
                stored[one.value.number] = f"elements({pointer(one.memory)}, i, count)"
            elif isinstance(one, Leave):
                stored[one.value.number] = "elements(kFeedback ? residual : accumulated, i, count) * factor"
        inside = elements_inside([action.value], stop=stored)
        changed = {made.name for made in step.makes if isinstance(made, Memory) and made.place == "state"}
        reads = [v.data for v in inside if v.number not in stored and isinstance(v.data, Memory)]
        if any(memory.place == "state" and memory.name in changed for memory in reads):
            return None
        return [(value, stored.get(value.number)) for value in inside]

    def _scatter(self, index: Value, value: str, length: str, each: str, padded: bool = False) -> None:
        function = "scatter_inside" if padded else "scatter"
        self.line(f"{self.all_inside} &= {function}({name_of(index, True)}, {value}, count, {length}, "
                  f"[&](std::int32_t place, float one) {{ {each}; }});")  # fmt: skip

    def after(self, action: Action) -> None:
        if isinstance(action, Reduce) and action.result is not None:
            self.line(*Reduction(action).finish())
            self.have(action.result)
        elif isinstance(action, Select):
            self.have(action.count)
        elif isinstance(action, Deliver) and action.index is not None:
            self.line("if (delivered.lost()) report(job);")
        elif isinstance(action, Leave):
            self.left = True
            self.line("[[maybe_unused]] const float* const left = kFeedback ? residual : accumulated;")

    def packed(self, item: int) -> None:
        """p1 points to item 1 of the payload, an array."""
        raise self.not_yet("a payload here")


def small_chunk(chunk: Value | None) -> bool:
    return chunk is not None and chunk.op == "constant" and chunk.data <= LONGEST_SMALL_CHUNK

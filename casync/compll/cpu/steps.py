"""The C++ of a program's steps: loops over sixteen lanes for passes, calls of operators, branches.

A reduction follows the fixed tree of docs/compll.md: v1 is its
result, l1 its lanes.
"""

from __future__ import annotations

from casync.compll.cpu.actions import Actions, small_chunk
from casync.compll.cpu.ahead import fetch_ahead
from casync.compll.cpu.calls import call_text, product_text
from casync.compll.cpu.products import Product
from casync.compll.cpu.reduce import Reduction
from casync.compll.cpu.tables import ByteTable, CodeTable, byte_table, code_tables, periodic
from casync.compll.cpu.text import POINTERS, SCALAR_TYPES
from casync.compll.cpu.unpacking import Unpacking
from casync.compll.cpu.values import NUMBERS, elements_inside, pointer, reads_gradient
from casync.compll.ir.chunkwise import Chunkwise, chunkwise
from casync.compll.ir.graph import BIT, Memory, Value
from casync.compll.ir.program import (
    Block,
    Branch,
    Call,
    Deliver,
    Pass,
    Reduce,
    Scatter,
    Select,
    Step,
)

__all__ = ["Steps"]


class Steps(Actions):
    """Prints a program's steps too."""

    def __init__(self, leaves: dict[str, str], path: str, failed: str) -> None:
        super().__init__(leaves, path, failed)
        self._passes = 0

    # --- steps

    def block(self, block: Block) -> None:
        for step in self.ordered(block):
            self.step(step)

    def ordered(self, block: Block) -> list[Step]:
        return chunkwise(block.steps)

    def step(self, step: Step) -> None:
        if isinstance(step, Pass):
            self._pass(step)
        elif isinstance(step, Call):
            self._call(step)
        else:
            self._branch(step)

    def _branch(self, branch: Branch) -> None:
        condition = self.single(branch.condition)
        for made, _, _ in branch.merged:
            if isinstance(made, Memory):
                self.line(f"const {POINTERS[made.stored]}* {pointer(made)} = nullptr;")
            else:
                self.line(f"{SCALAR_TYPES[made.kind]} v{made.number}{{}};")
                self._defined.add(made.number)
        sides = ((1, branch.then, f"if ({condition}) {{"), (2, branch.otherwise, "} else {"))
        for side, block, opening in sides:
            self.line(opening)
            with self._inside():
                self.block(block)
                for entry in branch.merged:
                    made, left = entry[0], entry[side]
                    if isinstance(made, Memory):
                        assert isinstance(left, Memory)
                        self.line(f"{pointer(made)} = {pointer(left)};")
                    else:
                        assert isinstance(left, Value)
                        self.line(f"v{made.number} = {self.single(left)};")
        self.line("}")

    # --- calls

    def _call(self, call: Call) -> None:
        for memory in call.arrays:
            self._fits(memory.domain)
            self.length(memory.domain)
        arguments = [self.single(value) for value in call.scalars]
        if isinstance(call, Product):
            self._product(call, arguments)
            return
        for made in call.makes:
            if isinstance(made, Value):
                self.line(f"{SCALAR_TYPES[made.kind]} v{made.number} = 0;")
                self.have(made)
        for table in code_tables(call):
            self._byte_table(table)
        self.line(*call_text(call, [self.length(memory.domain) for memory in call.arrays], arguments, self._failed))

    def _runs(self, step: Unpacking) -> None:
        """r1 gives what memory 1 would hold."""
        (codes,), number = step.repeat.arrays, step.made.number
        for table in code_tables(step.repeat):
            self._byte_table(table)
        self.line(f"Repeated r{number}({pointer(codes)}, {self.length(codes.domain)}, value{number}, count{number});")

    def _product(self, call: Product, arguments: list[str]) -> None:
        self.line("{")
        with self._inside():
            value = "" if call.gradient is not None else ", const F32x16& value"
            name = "deliver_element" if call.delivers else "element"
            self.line(
                f"const auto {name} = [&](std::int64_t i, std::int64_t count{value}) __attribute__((always_inline)) {{"
            )
            with self._inside():
                if call.gradient is not None:
                    self._element(call.gradient)
                    self.line(f"return v{call.gradient.number};")
                else:
                    self.line("deliver<kInto>(job, i, count, value, check);")
            self.line("};", *product_text(call, arguments, self._failed))
        self.line("}")

    def _byte_table(self, table: CodeTable) -> None:
        """Emit a table with what a value is for each byte i."""
        inside = elements_inside([table.value])
        spread = {v.number: v for part in inside for v in part.operands if not v.lanes}
        spread |= {held.number: held for held in table.known.values() if held is not None}
        for part in spread.values():
            self.single(part)
        self.line(f"alignas(64) {POINTERS[table.stored]} {table.name}[256];",
                  "for (std::int64_t i = 0; i < 256; i += 16) {")  # fmt: skip
        with self._inside():
            self.line(*(f"const auto w{part.number} = lanes(v{part.number});" for part in spread.values()))
            for part in inside:
                if part in table.known:
                    held = table.known[part]
                    text = f"w{held.number}" if held is not None else NUMBERS
                    self.line(f"[[maybe_unused]] const I32x16 v{part.number} = {text};")
                else:
                    self._element(part)
            self.line(f"put({table.name}, i, 16, v{table.value.number});")
        self.line("}")

    # --- passes

    def _pass(self, step: Pass) -> None:
        """One loop; `number` keeps the names of several apart."""
        inside = elements_inside(step.reads)
        number, self._passes = self._passes, self._passes + 1
        length = f"length{number}"
        self.line(f"[[maybe_unused]] const std::int64_t {length} = {self.length(step.domain)};")
        if any(isinstance(made, Memory) and made.place == "scratch" for made in step.makes):
            self._fits(step.domain)
        spread = {v.number: v for value in inside if value.op != "spread" for v in value.operands if not v.lanes}
        spread |= {action.value.number: action.value for action in step.actions if not action.value.lanes}
        for value in [*spread.values(), *(a.start for a in step.actions if isinstance(a, Reduce) and a.start)]:
            self.single(value)
        for value in inside:
            if isinstance(value.data, Memory):
                self.length(value.data.domain)
        self._declare_draws(inside)
        for action in step.actions:
            self.before(action, length)
        if isinstance(step, Unpacking):
            self._runs(step)
        scatters = any(isinstance(a, Scatter) or (isinstance(a, Deliver) and a.index) for a in step.actions)
        self.all_inside = f"inside{number}"
        if scatters:
            self.line(f"bool {self.all_inside} = true;")
        self.line("{")
        self._tables = {}
        with self._inside():
            for value in spread.values():
                self.line(f"[[maybe_unused]] const auto w{value.number} = lanes(v{value.number});")
            bytes_ = byte_table(step.actions[0].value) if [type(a) for a in step.actions] == [Deliver] else None
            if bytes_ is not None:
                self._bytes(bytes_, step, length)
            elif step.chunk is None:
                self._loop(step, self._tabulate(inside, step), "0", length, "kPage")
            elif small_chunk(step.chunk):
                self._small_chunks(step, inside, length)
            else:
                self._chunks(step, length)
        self.line("}")
        for action in step.actions:
            self.after(action)
        if isinstance(step, Unpacking):
            self.line(f"if (!r{step.made.number}.all()) {self._failed}")
        if scatters:
            self.line(f"if (!inside{number}) {self._failed}")

    def _declare_draws(self, inside: list[Value]) -> None:
        """d1 gives the random numbers of value 1, which a pass takes in order."""
        for value in inside:
            if value.op in ("stochastic_floor", "draws"):
                self.line(f"Draws d{value.number}(facts.key, {value.data[0]}U, {_is_shared(value)});")

    def _loop(self, step: Pass, inside: list[Value], first: str, last: str, page: str, *before: str) -> None:
        """Block by block of the fixed tree, with the lines `before` in front of each."""
        sums = [Reduction(action) for action in step.actions if isinstance(action, Reduce)]
        selects = [action for action in step.actions if isinstance(action, Select) and self.read_again(action, step)]
        self.line(f"std::int64_t block = {first};", *(f"Chosen c{action.count.number};" for action in selects))
        self.line(
            "const auto step = [&]([[maybe_unused]] std::int64_t i, [[maybe_unused]] std::int64_t count) "
            "__attribute__((always_inline)) {"
        )
        with self._inside():
            self.line("[[maybe_unused]] const bool whole = is_whole(count);", *fetch_ahead(step))
            for value in inside:
                self._element(value)
            for action in step.actions:
                self.act(action, step)
        self.line("};", f"for (; block < {last}; block += {page}) {{")
        with self._inside():
            self.line(f"const std::int64_t stop = block + {page} < {last} ? block + {page} : {last};")
            self.line(*(line for reduction in sums for line in reduction.clear_one()))
            self._fetch(inside)
            self.line(*before)
            self.line("{", "  std::int64_t i = block;", "  for (; i + 16 <= stop; i += 16) step(i, 16);",
                      "  if (i < stop) step(i, stop - i);", "}")  # fmt: skip
            self.line(*(line for reduction in sums for line in reduction.fold()))
            for action in selects:
                self.append_chosen(action, step)
            for action in step.actions:
                if isinstance(action, Reduce) and action.to is not None and small_chunk(step.chunk):
                    assert step.chunk is not None
                    self.line(f"sum_chunks<{step.chunk.data}>(staged{action.to.number}, stop - block, "
                              f"{pointer(action.to)} + block / {step.chunk.data});")  # fmt: skip
        self.line("}")

    def _fetch(self, inside: list[Value]) -> None:
        """Prefetch what a block reads at places far apart, if nothing must be read to know the places."""
        picks = [value for value in inside if value.op == "pick" and _far_apart(value.operands[0])]
        if not picks:
            return
        self.line("for (std::int64_t i = block; i < stop; i += 16) {")
        with self._inside():
            for value in elements_inside(pick.operands[0] for pick in picks):
                self._element(value)
            for pick in picks:
                at = f"v{pick.operands[0].number}"
                from_ = "fetch_gradient<kFeedback>(job" if pick.data is None else f"fetch({pointer(pick.data)}"
                self.line(f"{from_}, {at});")
        self.line("}")

    def _chunks(self, step: Pass, length: str) -> None:
        """Emit the same for each chunk by itself."""
        assert step.chunk is not None
        chunk = self.single(step.chunk)
        self.line(f"const std::int64_t each = {chunk} > 1 ? {chunk} : 1;",
                  f"for (std::int64_t chunk = 0, first = 0; first < {length}; ++chunk, first += each) {{")  # fmt: skip
        checks = self.checks
        with self._inside():
            self.line(f"const std::int64_t last = first + each < {length} ? first + each : {length};")
            for part in step.parts if isinstance(step, Chunkwise) else [step]:
                self.line("{")
                with self._inside():
                    self._chunk(part)
                self.line("}")
                self.checks &= not reads_gradient(part)  # once is enough
        self.checks = checks
        self.line("}")

    def _chunk(self, part: Pass) -> None:
        inside = elements_inside(part.reads)
        known: set[int] = set()
        for value in inside:
            if value.op == "spread":
                self._spread(value, known)
        reductions = [Reduction(a) for a in part.actions if isinstance(a, Reduce) and a.to is not None]
        self.line(*(line for reduction in reductions for line in reduction.start("last - first")))
        self._loop(part, inside, "first", "last", "kPage")
        for reduction in reductions:
            assert reduction.action.to is not None
            self.line(*reduction.finish(), f"{pointer(reduction.action.to)}[chunk] = {reduction.name};")

    def _small_chunks(self, step: Pass, inside: list[Value], length: str) -> None:
        """Chunks shorter than sixteen lanes: staged, then added one by one."""
        assert step.chunk is not None
        page = 16 * step.chunk.data * (1024 // (16 * step.chunk.data))
        for action in step.actions:
            if isinstance(action, Reduce):
                if action.to is None or action.function != "add" or action.to.stored == "f32":
                    raise self.not_yet("reduce of small chunks but for integers and add")
                self.line(f"alignas(64) {POINTERS[action.to.stored]} staged{action.to.number}[{page} + 16];")
        self._loop(step, self._tabulate(inside, step), "0", length, str(page))

    def _tabulate(self, inside: list[Value], step: Pass) -> list[Value]:
        """Compute once what repeats; gives what is left to do for each element."""
        self._tables = {}
        for by, values in periodic(inside).items():
            numbers = {value.number for value in values}
            used = {o.number for value in inside if value.number not in numbers for o in value.operands}
            used |= {value.number for value in step.reads}
            tables = [value for value in values if value.number in used and value.kind != BIT]
            if not tables:
                continue
            needed = elements_inside(tables)
            for value in tables:
                self.line(f"alignas(64) {SCALAR_TYPES[value.kind]} t{value.number}[{16 * by}];")
            self.line(f"for (std::int64_t i = 0; i < {16 * by}; i += 16) {{")
            with self._inside():
                for value in needed:
                    self._element(value)
                self.line(*(f"put(t{value.number}, i, 16, v{value.number});" for value in tables))
            self.line("}")
            self._tables |= {value.number: f"i % {16 * by}" for value in tables}
        left = [value for action in step.actions for value in action.reads if value.lanes]
        return elements_inside(left, stop=self._tables)

    def _bytes(self, table: ByteTable, step: Pass, length: str) -> None:
        """All values that there are, by byte and position, of which each chunk of a block takes a copy."""
        type_, number = POINTERS[table.stored], table.value.number
        page = 16 * table.chunk * 8
        self.line(f"alignas(64) {type_} table[256 * 8];", f"alignas(64) {type_} t{number}[{page} + 8];",
                  "for (std::int32_t code = 0; code < 256; ++code) {")  # fmt: skip
        with self._inside():
            for value in elements_inside([table.value]):
                if value.number in table.positions:
                    self.line(f"const I32x16 v{value.number} = lane_numbers();")
                elif value.number in table.bytes_:
                    self.line(f"const I32x16 v{value.number} = lanes(code);")
                elif value.op != "index" and not (value.op == "/" and value.operands[0].op == "index"):
                    self._element(value)
            self.line(f"put(table, 8 * std::int64_t{{code}}, 8, v{number});")
        self.line("}")
        self._tables = {number: "i - block"}
        if isinstance(step, Unpacking):
            self.line(f"static_assert({page // table.chunk} <= Repeated::kMost);")
            source = f"r{step.made.number}.next((stop - block + {table.chunk - 1}) / {table.chunk})"
        else:
            source = f"{pointer(table.memory)} + block / {table.chunk}"
        first = f"copy_rows<{table.chunk}>(table, {source}, stop - block, t{number});"
        self._loop(step, elements_inside(step.reads, stop=self._tables), "0", length, str(page), first)

    def _spread(self, value: Value, known: set[int]) -> None:
        """The value of this chunk in all lanes, after those `known` that it is made of."""
        (operand,) = value.operands
        for part in elements_inside([operand]):
            if part.number in known:
                continue
            known.add(part.number)
            if part.op == "load":
                text = f"pick({pointer(part.data)}, static_cast<std::int32_t>(chunk))"
            elif part.op == "index":
                text = "static_cast<std::int32_t>(chunk)"
            else:
                for single in part.operands:
                    if not single.lanes:
                        self.single(single)
                text = self._text(part, False)
            self.line(f"const {SCALAR_TYPES[part.kind]} v{part.number} = {text};")
        self.line(f"const auto v{value.number} = lanes(v{operand.number});")


def _is_shared(value: Value) -> str:
    return str(value.op == "draws" and value.data[1]).lower()


def _far_apart(place: Value) -> bool:
    """Places that are some multiples of elements' numbers."""
    inside = elements_inside([place])
    reads = any(value.op in ("gradient", "load", "pick", "spread") for value in inside)
    return not reads and any(value.op == "*" for value in inside)

"""C++ of one unit's programs: encode for each round, decode, and what `init` computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from casync.compll import typed
from casync.compll.cpu.functions import bytes_of, leaves_of
from casync.compll.cpu.quantiser import is_quantiser
from casync.compll.cpu.text import POINTERS, SCALAR_TYPES
from casync.compll.cpu.values import pointer
from casync.compll.cuda.steps import Steps
from casync.compll.ir.graph import BIT, FLOAT, FLOATS, Memory, Value
from casync.compll.ir.lower import Lowered
from casync.compll.ir.memories import lengths_known, used
from casync.compll.ir.program import Item, Pass, Program, Reduce, changes, float_sums, loses, needs
from casync.compll.types import Scalar

__all__ = ["UnitCode", "emit_units"]

_TOO_LONG = "return EncodedUnit{.bytes = -1};"
_CORRUPT = "return -1;"
_LEAVES = {"received": "load<float>(job.received)"}


@dataclass(frozen=True)
class UnitCode:
    """The members of two structs for one choice of widths: what a team runs, and what the host must know of it."""

    programs: str
    sizes: str


def emit_units(codec: typed.Codec, lowered: Lowered) -> UnitCode:
    unit = _Unit(codec, lowered)
    parts = [unit.encode_round(program, number) for number, program in enumerate(lowered.rounds)]
    parts += [unit.decode(), unit.size(), unit.encode()]
    proposing = (0, 0)
    if codec.init is not None:
        text, proposing = unit.propose()
        parts += [text, unit.agree()]
    per_element = sum(1 << i for i, state in enumerate(codec.states) if not isinstance(state.type, Scalar)
                      and state.type.length.kind == "unit")  # fmt: skip
    states = _constants({"int kStates": len(codec.states), "unsigned kStatesPerElement": f"{per_element}U"})
    scratch = _constants({"int kArrays": unit.arrays, "int kReductions": unit.reductions,
                          "int kProposeArrays": proposing[0], "int kProposeReductions": proposing[1]})  # fmt: skip
    return UnitCode("\n".join([states, unit.room(), *parts]), f"{scratch}\n{unit.room()}")


def _constants(values: Mapping[str, object]) -> str:
    return "".join(f"static constexpr {name} = {value};\n" for name, value in values.items())


def _function(signature: str, lines: Sequence[str], template: bool = True) -> str:
    unused = signature.replace(", ", ", [[maybe_unused]] ").replace("(", "([[maybe_unused]] ", 1)
    head = "template <typename Team>\n" if template else ""
    return f"{head}static CASYNC_DEVICE {unused} {{\n{''.join(f'  {line}{chr(10)}' for line in lines)}}}\n"


class _Unit:
    """`arrays` of a unit's length and `reductions`: the most that a program has at a time."""

    def __init__(self, codec: typed.Codec, lowered: Lowered) -> None:
        self._codec, self._lowered = codec, lowered
        self._quantiser = is_quantiser(codec, lowered)
        self.arrays, self.reductions = 0, 1

    def _steps(self, failed: str, program: Program) -> Steps:
        packed = [number for number, item in enumerate(program.payload) if _small(item)]
        return Steps(leaves_of(self._codec) | _LEAVES, self._codec.path, failed, packed)

    def _start(self, program: Program, steps: Steps) -> list[str]:
        """Memories: m1 is where memory 1 lies, in scratch, or a state, or what was received."""
        names = [state.name for state in self._codec.states]
        lines = ["[[maybe_unused]] const Facts& facts = job.facts;", "std::byte* scratch = job.scratch;",
                 "const std::int64_t room = room_of(facts);"]  # fmt: skip
        work = f"take<float>(scratch, {steps.reductions} * work_of(room))"
        lines.append(f"[[maybe_unused]] float* const work = {work};")
        for memory in sorted(used(program.block), key=lambda memory: memory.number):
            name = f"m{memory.number}"
            if memory.place == "scratch":
                taken = f"take<{POINTERS[memory.stored]}>(scratch, {'2 * ' * memory.padded}room)"
                lines.append(f"[[maybe_unused]] auto* const {name} = {taken};")
            elif memory.place == "state":
                lines.append(f"[[maybe_unused]] float* const {name} = facts.state[{names.index(memory.name)}];")
            elif memory.place == "received":
                type_ = f"const {POINTERS[memory.stored]}*"
                lines.append(f"[[maybe_unused]] {type_} const {name} = reinterpret_cast<{type_}>(job.received);")
        return lines

    def _needs(self, program: Program, steps: Steps, more: int = 0) -> None:
        self.arrays = max(self.arrays, _arrays(program) + more)
        self.reductions = max(self.reductions, steps.reductions)

    def room(self) -> str:
        """Elements that arrays in scratch memory have room for: the unit's, and those of all lengths that are known."""
        steps = Steps(leaves_of(self._codec), self._codec.path, "")
        one = self._lowered
        programs = [program for program in (*one.rounds, one.decode, one.propose) if program is not None]
        steps.line("std::int64_t room = facts.n;")
        for program in programs:
            own = Steps(leaves_of(self._codec), self._codec.path, "")
            for length in lengths_known(program.block, used(program.block)):
                own.line(f"room = larger(room, std::int64_t{{{own.single(length)}}});")
            steps.line(*(["{", *(f"  {line}" for line in own.lines), "}"] if own.lines else []))
        body = "".join(f"  {line}\n" for line in [*steps.lines, "return room;"])
        return f"static CASYNC_DEVICE std::int64_t room_of(const Facts& facts) {{\n{body}}}\n"

    # --- encode

    def encode_round(self, program: Program, number: int) -> str:
        packed = [position for position, item in enumerate(program.payload) if _small(item)]
        steps = _Encode(self._codec, program, number, packed)
        steps.all_of_it()
        self.keep_singles(steps, program)
        steps.line(f"return EncodedUnit{{.bytes = to - job.payload{', .settled = true' * loses(program)}}};")
        self._needs(program, steps, len(steps.backed_up))
        body = [*self._start(program, steps), *_TO, *steps.lines]
        encode = _function(f"EncodedUnit encode{number}(const Team& team, const UnitJob& job)", body)
        return f"{self._poison(program, number)}\n{encode}"

    def keep_singles(self, steps: Steps, program: Program) -> None:
        """Assign single states, when no thread reads them as they were any more."""
        if program.singles and self._codec.properties.unit is not None:
            raise steps.not_yet("a single state that each unit assigns, on a device,")
        names = [state.name for state in self._codec.states]
        values = [(names.index(name), steps.single(value)) for name, value in program.singles]
        if values:
            keeps = " && job.keep" * steps.keeps_on_request
            steps.line("team.barrier();", f"if (team.rank() == 0{keeps}) {{",
                       *(f"  facts.state[{number}][0] = {value};" for number, value in values), "}")  # fmt: skip

    def _poison(self, program: Program, number: int) -> str:
        """Return the function that writes a unit that is not finite: NaN for floats, 0 for integers, and no more than
        the first count; all bits set if there are only integers. All bits of a NaN of 16 bits may be set.
        """
        steps = self._steps(_TOO_LONG, program)
        zeros = any(item.counted or item.stored in FLOATS for item in program.payload)
        for item in program.payload:
            if item.counted:
                steps.line(f"if (end - to < 4) {_TOO_LONG}")
                steps.line("write_one<std::int32_t>(team, to, kPoisonedCount);", "to += 4;")
                break
            bytes_ = _bytes(steps, item)
            rest = "0U" if zeros and item.stored not in FLOATS else "0xffU"
            fill = f"fill_nan(team, to, {bytes_});" if item.stored == "f32" else f"fill(team, to, {bytes_}, {rest});"
            steps.line(f"if (end - to < {bytes_}) {_TOO_LONG}", fill, f"to += {bytes_};")
        steps.line("return EncodedUnit{.bytes = to - job.payload, .nonfinite = true};")
        body = ["[[maybe_unused]] const Facts& facts = job.facts;", *_TO, *steps.lines]
        return _function(f"EncodedUnit poison{number}(const Team& team, const UnitJob& job)", body)

    def encode(self) -> str:
        """All rounds, and what the last one leaves in the residual."""
        signature = "EncodedUnit encode(const Team& team, const UnitJob& job, int round)"
        last = len(self._lowered.rounds) - 1
        if loses(self._lowered.rounds[last]):
            return _function(signature, ["return encode0(team, job);"])
        lines = ["EncodedUnit encoded{};"]
        lines += [f"if (round == {number}) encoded = encode{number}(team, job);" for number in range(last + 1)]
        lines += [f"if (job.residual == nullptr || round != {last} || encoded.nonfinite || encoded.bytes < 0)",
                  "  return encoded;", "team.barrier();"]  # fmt: skip
        lost = ["[[maybe_unused]] const Facts& facts = job.facts;"]
        received = [memory for memory in used(self._lowered.decode.block) if memory.place == "received"]
        for memory in [memory for memory in received if memory.stored in FLOATS]:
            steps = self._steps("", self._lowered.decode)
            length = steps.length(memory.domain)
            array = f"reinterpret_cast<const {POINTERS[memory.stored]}*>(job.received)"
            element = f"[&](std::int64_t i) {{ return at({array}, i); }}"
            lost += [*steps.lines, f"if (!all_finite(team, {length}, {element})) return encoded;"]
        decoding = ("const DecodeJob sent{.facts = job.facts, .payload = job.payload, .payload_end = job.payload + "
                    "encoded.bytes, .received = job.received, .scratch = job.scratch, .out = job.residual, "
                    ".accumulated = job.accumulated, .divisor = job.mid};")  # fmt: skip
        leaves = any(isinstance(step, Pass) and step.leaves for step in self._lowered.rounds[last].block.steps)
        into = "subtract" if leaves else "lose"
        lines += [*lost, decoding, f"decode(team, sent, Into::{into});", "return encoded;"]
        return _function(signature, lines)

    # --- decode

    def decode(self) -> str:
        program = self._lowered.decode
        steps = self._steps(_CORRUPT, program)
        steps.keeps_on_request = True
        for item in program.payload:
            self._unpack(steps, item, decodes=True)
        if not self._quantiser:
            self._look_at_first(steps, program)
            steps.line("if (poisoned) {", f"  {_DELIVER_NAN}", "  return from - job.payload;", "}")
        steps.block(program.block)
        self.keep_singles(steps, program)
        steps.line("return from - job.payload;")
        self._needs(program, steps)
        poisoned = [] if self._quantiser else ["bool poisoned = false;"]
        body = [*self._start(program, steps), *poisoned, *_FROM, *steps.lines]
        return _function("std::int64_t decode(const Team& team, const DecodeJob& job, Into into)", body)

    @staticmethod
    def _look_at_first(steps: Steps, program: Program) -> None:
        """Look at the first element of an array if that holds the only floats: it says whether the unit is poisoned."""
        if any(item.counted or (item.value is not None and item.value.kind == FLOAT) for item in program.payload):
            return
        arrays = [item.memory for item in program.payload if item.memory is not None and item.stored in FLOATS]
        if arrays:
            first = f"pick(m{arrays[0].number}, 0, {steps.length(arrays[0].domain)})"
            steps.line(f"poisoned = {first} != {first};")

    def size(self) -> str:
        """The bytes of a unit at the front of a payload, for one thread."""
        program = self._lowered.decode
        steps = self._steps(_CORRUPT, program)
        for item in program.payload:
            self._unpack(steps, item, decodes=False)
        steps.line("return from - job.payload;")
        body = ["[[maybe_unused]] const Facts& facts = job.facts;", *_FROM, *steps.lines]
        return _function("std::int64_t size(const DecodeJob& job)", body, template=False)

    def _unpack(self, steps: Steps, item: Item, decodes: bool) -> None:
        """A poisoned unit is NaN, whatever else it says, and ends with the first count."""
        if item.value is not None:
            bytes_ = bytes_of(item, "1")
            name = f"v{item.value.number}"
            read = f"at({_source(item)}{{from}}, 0){' != 0' * (item.value.kind == BIT)}"
            steps.line(f"if (end - from < {bytes_}) {_CORRUPT}",
                       f"[[maybe_unused]] const {SCALAR_TYPES[item.value.kind]} {name} = {read};",
                       f"from += {bytes_};")  # fmt: skip
            steps.have(item.value)
            if decodes and item.value.kind == FLOAT and not self._quantiser:
                steps.line(f"poisoned |= {name} != {name};")
            return
        assert item.domain is not None and item.memory is not None
        if item.counted:
            assert item.domain.length is not None
            name = f"v{item.domain.length.number}"
            steps.line(f"if (end - from < 4) {_CORRUPT}", f"const std::int32_t {name} = load<std::int32_t>(from);",
                       "from += 4;", f"if ({name} == kPoisonedCount) {{", *([f"  {_DELIVER_NAN}"] if decodes else []),
                       "  return from - job.payload;", "}",
                       f"if ({name} < 0 || {name} > room_of(facts)) {_CORRUPT}")  # fmt: skip
            steps.have(item.domain.length)
        bytes_ = _bytes(steps, item)
        steps.line(f"if (end - from < {bytes_}) {_CORRUPT}")
        if decodes:
            steps.line(f"[[maybe_unused]] const {_source(item)} m{item.memory.number}{{from}};")
        steps.line(f"from += {bytes_};")

    # --- init

    def propose(self) -> tuple[str, tuple[int, int]]:
        """The function, and how many arrays and reductions it needs."""
        program = self._lowered.propose
        assert program is not None
        steps = self._steps("return kNan;", program)
        steps.block(program.block)
        (item,) = program.payload
        assert item.value is not None
        steps.line(f"return {steps.single(item.value)};")
        body = [*self._start(program, steps), *steps.lines]
        text = _function("float propose(const Team& team, const UnitJob& job)", body)
        return text, (_arrays(program), steps.reductions)

    def agree(self) -> str:
        program = self._lowered.agree
        assert program is not None
        steps = Steps(leaves_of(self._codec) | {"received 0": "received"}, self._codec.path, "")
        names = [state.name for state in self._codec.states]
        for name, value in program.singles:
            steps.line(f"facts.state[{names.index(name)}][0] = {steps.single(value)};")
        return _function("void agree(const Facts& facts, float received)", steps.lines, template=False)


_DELIVER_NAN = "deliver_everywhere(team, job, kNan);"
_FROM = ("const std::byte* from = job.payload;", "const std::byte* const end = job.payload_end;")
_TO = ("std::byte* to = job.payload;", "std::byte* const end = job.payload_end;")


class _Encode(Steps):
    """`to` goes through the payload; p1 is where item 1 lies. What is not finite is found before a state changes."""

    def __init__(self, codec: typed.Codec, program: Program, number: int, packed_items: Sequence[int]) -> None:
        super().__init__(leaves_of(codec) | _LEAVES, codec.path, _TOO_LONG, packed_items)
        self._program, self._number = program, number
        self._placed = 0
        self._checked: set[int] = set()  # scalars of the payload
        self.backed_up: list[str] = []

    def all_of_it(self) -> None:
        self._unless("all_finite(team, job)")
        changed = False
        for position, step in enumerate(self._program.block.steps):
            if not changed and changes(step):
                self._before_changes(position)
                changed = True
            self.step(step)
        self.packed(len(self._program.payload) - 1)
        for position, item in enumerate(self._program.payload):
            if item.value is not None:
                self._look_at(item.value)
                name = self.single(item.value)
                self.line(f"write_one<{POINTERS[item.stored]}>(team, p{position}.bytes, {name});")

    def _before_changes(self, position: int) -> None:
        """Look at the payload's scalars, as far as they are there."""
        scalars = [item.value for item in self._program.payload if item.value is not None]
        left = self._program.block.steps[position:]
        later_made = {made for step in left for made in step.makes}
        for value in scalars:
            if not later_made.intersection(needs([value])):
                self._look_at(value)
        if not any(float_sums(step) for step in left) and all(
            value.number in self._checked for value in scalars if value.kind == FLOAT
        ):
            return
        changed = {m.name: m for step in left for m in step.makes if isinstance(m, Memory) and m.place == "state"}
        for _, memory in sorted(changed.items()):
            before = f"before{len(self.backed_up)}"
            self.line(f"auto* const {before} = take<float>(scratch, room);",
                      f"copy(team, {pointer(memory)}, {self.length(memory.domain)}, {before});")  # fmt: skip
            self.backed_up.append(f"copy(team, {before}, {self.length(memory.domain)}, {pointer(memory)});")

    def _unless(self, finite: str) -> None:
        """Give up if it is not."""
        self.line(f"if (!{finite}) {{", *(f"  {one}" for one in self.backed_up),
                  f"  return poison{self._number}(team, job);", "}")  # fmt: skip

    def _look_at(self, value: Value) -> None:
        if value.kind == FLOAT and value.number not in self._checked:
            self._checked.add(value.number)
            self._unless(f"finite({self.single(value)})")

    def _pass(self, step: Pass) -> None:
        super()._pass(step)
        for action in step.actions:
            if isinstance(action, Reduce) and action.float_sum and action.result is not None:
                self._unless(f"finite(v{action.result.number})")

    def packed(self, item: int) -> None:
        for number in range(self._placed, item + 1):
            self._place(number, self._program.payload[number])
        self._placed = max(self._placed, item + 1)

    def _place(self, number: int, item: Item) -> None:
        bytes_ = _bytes(self, item)
        if item.counted:
            assert item.domain is not None
            count = f"static_cast<std::int32_t>({self.length(item.domain)})"
            self.line(f"if (end - to < 4) {_TOO_LONG}", f"write_one<std::int32_t>(team, to, {count});", "to += 4;")
        stored = f"Packed<{item.stored[1:]}>" if _small(item) else f"Stored<{POINTERS[item.stored]}>"
        self.line(f"if (end - to < {bytes_}) {_TOO_LONG}", f"[[maybe_unused]] const {stored} p{number}{{to}};",
                  f"to += {bytes_};")  # fmt: skip


def _small(item: Item) -> bool:
    """An array of codes of less than a byte."""
    return item.value is None and item.stored not in POINTERS


def _source(item: Item) -> str:
    return f"PackedSource<{item.stored[1:]}>" if _small(item) else f"StoredSource<{POINTERS[item.stored]}>"


def _bytes(steps: Steps, item: Item) -> str:
    return bytes_of(item, "1" if item.domain is None else steps.length(item.domain))


def _arrays(program: Program) -> int:
    """Return how many arrays of a unit's length the program needs in scratch memory."""
    return sum(2 if memory.padded else 1 for memory in used(program.block) if memory.place == "scratch")

"""C++ of codecs whose units are any programs: encode for each round, decode, and what `init` computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from casync.compll import typed
from casync.compll.cpu.calls import matrices
from casync.compll.cpu.functions import bytes_of, leaves_of
from casync.compll.cpu.steps import Steps, elements_inside, pointer
from casync.compll.cpu.text import POINTERS, SCALAR_TYPES
from casync.compll.ir.graph import BIT, FLOAT, Memory
from casync.compll.ir.lower import Lowered
from casync.compll.ir.program import Block, Branch, Call, Item, Pass, Program, Reduce, needs

__all__ = ["emit_init", "emit_units"]

_TOO_LONG = "return EncodedUnit{.bytes = -1};"
_CORRUPT = "return -1;"


def emit_units(codec: typed.Codec, lowered: Lowered) -> str:
    """The functions encode, decode and, with `init`, propose and agree, for one choice of widths."""
    parts = [_encode(codec, program, number) for number, program in enumerate(lowered.rounds)]
    calls = "".join(
        f"  if (round == {number}) return feedback ? encode{number}<true>(job) : encode{number}<false>(job);\n"
        for number in range(len(lowered.rounds))
    )
    calls = f"  const bool feedback = job.residual != nullptr;\n{calls}"
    parts.append(f"EncodedUnit encode_unit(const UnitJob& job, int round) {{\n{calls}  return {{}};\n}}\n")
    parts.append(_decode(codec, lowered.decode))
    parts.append(_scratch_bytes("scratch_bytes", codec, (*lowered.rounds, lowered.decode)))
    return "\n".join(parts)


def emit_init(codec: typed.Codec, lowered: Lowered) -> str:
    """propose and agree."""
    assert lowered.propose is not None and lowered.agree is not None
    steps = _Encode(codec, lowered.propose, 0)
    steps.block(lowered.propose.block)
    (item,) = lowered.propose.payload
    assert item.value is not None
    result = steps.single(item.value)
    propose = _function("template <bool kFeedback>\nfloat propose_as(const UnitJob& job)",
                        [*_START, *_memories(codec, lowered.propose), *steps.lines, f"return {result};"])  # fmt: skip
    agreed = Steps(leaves_of(codec) | {"received 0": "received"}, codec.path, "")
    _keep_singles(agreed, codec, lowered.agree)
    agree = _function("void agree(const Facts& facts, float received)", agreed.lines)
    scratch = _scratch_bytes("propose_scratch", codec, [lowered.propose])
    return f"{propose}\nfloat propose(const UnitJob& job) {{ return propose_as<false>(job); }}\n\n{scratch}\n{agree}"


_START = (
    "[[maybe_unused]] const Facts& facts = job.facts;",
    "[[maybe_unused]] const float* const accumulated = job.accumulated;",
    "[[maybe_unused]] const float* const residual = job.residual;",
    "[[maybe_unused]] const F32x16 factor = splat(job.mid);",
    "[[maybe_unused]] std::byte* scratch = job.scratch;",
    "[[maybe_unused]] Finiteness check;",
)


def _function(signature: str, lines: Sequence[str]) -> str:
    return f"{signature} {{\n{''.join(f'  {line}{chr(10)}' for line in lines)}}}\n"


# --- encode


def _encode(codec: typed.Codec, program: Program, number: int) -> str:
    steps = _Encode(codec, program, number)
    steps.steps()
    steps.finish()
    lines = [*_START, "[[maybe_unused]] std::byte* to = job.payload;", "std::byte* const end = job.payload_end;",
             *_memories(codec, program), *steps.lines,
             "return EncodedUnit{.bytes = to - job.payload};"]  # fmt: skip
    return (
        _poison(codec, program, number)
        + "\n"
        + _function(f"template <bool kFeedback>\nEncodedUnit encode{number}(const UnitJob& job)", lines)
    )


def _poison(codec: typed.Codec, program: Program, number: int) -> str:
    """What a unit that is not finite is sent as: NaN for floats, 0 for integers, and no more than the first count."""
    steps = Steps(leaves_of(codec), codec.path, _TOO_LONG)
    for item in program.payload:
        if item.counted:
            steps.line(f"if (end - to < 4) {_TOO_LONG}", "write_count(to, kPoisonedCount);", "to += 4;")
            break
        bytes_ = bytes_of(item, steps.length(item.domain)) if item.domain is not None else bytes_of(item, "1")
        floats = str(item.stored == "f32").lower()
        steps.line(f"if (end - to < {bytes_}) {_TOO_LONG}", f"poison<{floats}>(to, {bytes_});", f"to += {bytes_};")
    return _function(f"EncodedUnit poison{number}(const UnitJob& job)", [
        "[[maybe_unused]] const Facts& facts = job.facts;", "std::byte* to = job.payload;",
        "std::byte* const end = job.payload_end;", *steps.lines,
        "return EncodedUnit{.bytes = to - job.payload, .nonfinite = true};"])  # fmt: skip


class _Encode(Steps):
    """`to` goes through the payload; p1 is where item 1 of it lies."""

    def __init__(self, codec: typed.Codec, program: Program, number: int) -> None:
        super().__init__(leaves_of(codec) | {"received": "received[0]"}, codec.path, _TOO_LONG)
        self._codec, self._program, self._number = codec, program, number
        self._placed = 0

    def steps(self) -> None:
        """All of them; what is not finite is found before a state changes."""
        looked = False
        for step in self._program.block.steps:
            changes = any(isinstance(made, Memory) and made.place == "state" for made in step.makes)
            if changes and not looked:
                self.line(f"if (!all_finite<kFeedback>(job)) return poison{self._number}(job);")
                looked = True
            reads = isinstance(step, Pass) and any(value.op == "gradient" for value in elements_inside(step.reads))
            self.checks = reads and not looked
            self.step(step)
            if self.checks:
                self.line(f"if (check.lost()) return poison{self._number}(job);")
                looked, self.checks = True, False
            for action in step.actions if isinstance(step, Pass) else ():
                if isinstance(action, Reduce) and action.float_sum and action.result is not None:
                    self.line(f"if (!finite(v{action.result.number})) return poison{self._number}(job);")
        if not looked:
            self.line(f"if (!all_finite<kFeedback>(job)) return poison{self._number}(job);")

    def packed(self, item: int) -> None:
        for number in range(self._placed, item + 1):
            self._place(number, self._program.payload[number])
        self._placed = max(self._placed, item + 1)

    def _place(self, number: int, item: Item) -> None:
        bytes_ = bytes_of(item, self.length(item.domain)) if item.domain is not None else bytes_of(item, "1")
        if item.counted:
            assert item.domain is not None
            count = f"static_cast<std::int32_t>({self.length(item.domain)})"
            self.line(f"if (end - to < 4) {_TOO_LONG}", f"write_count(to, {count});", "to += 4;")
        self.line(f"if (end - to < {bytes_}) {_TOO_LONG}", f"{_array(item, f'p{number}', 'to')}", f"to += {bytes_};")

    def finish(self) -> None:
        payload = self._program.payload
        if payload:
            self.packed(len(payload) - 1)
        for number, item in enumerate(payload):
            if item.value is not None:
                name = self.single(item.value)
                if item.value.kind == FLOAT:
                    self.line(f"if (!finite({name})) return poison{self._number}(job);")
                self.line(f"write_one(p{number}, {name});")
        _keep_singles(self, self._codec, self._program)


def _keep_singles(steps: Steps, codec: typed.Codec, program: Program) -> None:
    """Assign single states, when nothing reads them as they were any more."""
    names = [state.name for state in codec.states]
    values = [(names.index(name), steps.single(value)) for name, value in program.singles]
    keeps = "if (job.keep) " if steps.keeps_on_request else ""
    steps.line(*(f"{keeps}facts.state[{number}][0] = {value};" for number, value in values))


# --- decode


def _decode(codec: typed.Codec, program: Program) -> str:
    steps = Steps(leaves_of(codec) | {"received": "received[0]"}, codec.path, _CORRUPT)
    steps.keeps_on_request = True
    for item in program.payload:
        _unpack(steps, item)
    steps.line("if (poisoned) {", "  deliver_nan<kInto>(job);", "  return at - job.payload;", "}")
    steps.block(program.block)
    _keep_singles(steps, codec, program)
    lines = [
        "[[maybe_unused]] const Facts& facts = job.facts;", "[[maybe_unused]] std::byte* scratch = job.scratch;",
        "[[maybe_unused]] bool poisoned = false;", "const std::byte* at = job.payload;",
        "const std::byte* const end = job.payload_end;", *_memories(codec, program), *steps.lines,
        "return at - job.payload;"]  # fmt: skip
    calls = "".join(
        f"  if (into == Into::{mode}) return decode_as<Into::{mode}>(job);\n" for mode in ("set", "add", "lose")
    )
    body = _function("template <Into kInto>\nstd::int64_t decode_as(const DecodeJob& job)", lines)
    return f"{body}\nstd::int64_t decode_unit(const DecodeJob& job, Into into) {{\n{calls}  return -1;\n}}\n"


def _unpack(steps: Steps, item: Item) -> None:
    """A poisoned unit is NaN, whatever else it says, and ends with the first count."""
    if item.value is not None:
        bytes_ = bytes_of(item, "1")
        name = f"v{item.value.number}"
        steps.line(f"if (end - at < {bytes_}) {_CORRUPT}",
                   f"const {SCALAR_TYPES[item.value.kind]} {name} = {_read(item)};", f"at += {bytes_};")  # fmt: skip
        steps.have(item.value)
        if item.value.kind == FLOAT:
            steps.line(f"poisoned |= {name} != {name};")
        return
    assert item.domain is not None and item.memory is not None
    if item.counted:
        assert item.domain.length is not None
        name = f"v{item.domain.length.number}"
        steps.line(
            f"if (end - at < 4) {_CORRUPT}", f"const std::int32_t {name} = read_count(at);", "at += 4;",
            f"if ({name} == kPoisonedCount) {{", "  deliver_nan<kInto>(job);", "  return at - job.payload;", "}",
            f"if ({name} < 0 || {name} > facts.n) {_CORRUPT}")  # fmt: skip
        steps.have(item.domain.length)
    bytes_ = bytes_of(item, steps.length(item.domain))
    steps.line(f"if (end - at < {bytes_}) {_CORRUPT}", _array(item, pointer(item.memory), "at", constant=True),
               f"at += {bytes_};")  # fmt: skip


def _read(item: Item) -> str:
    assert item.value is not None
    text = f"pick(reinterpret_cast<const {POINTERS[item.stored]}*>(at), 0, 1)"
    return f"{text} != 0" if item.value.kind == BIT else text


# --- memories


def _memories(codec: typed.Codec, program: Program) -> list[str]:
    """m1 is where memory 1 lies: in scratch, or a state, or what was received."""
    names = [state.name for state in codec.states]
    lines = []
    for memory in sorted(_used(program.block), key=lambda memory: memory.number):
        name = f"m{memory.number}"
        if memory.place == "scratch":
            length = "2 * facts.n" if memory.units == 2 else "facts.n"
            lines.append(f"auto* const {name} = take<{POINTERS[memory.stored]}>(scratch, {length});")
        elif memory.place == "state":
            lines.append(f"[[maybe_unused]] float* const {name} = facts.state[{names.index(memory.name)}];")
        elif memory.place == "received":
            lines.append(f"const float* const {name} = job.received;")
    return lines


def _scratch_bytes(name: str, codec: typed.Codec, programs: Sequence[Program]) -> str:
    """Arrays first, and behind them what matmul needs."""
    lines = ["std::int64_t spare = 0;"]
    for program in programs:
        steps = Steps(leaves_of(codec), codec.path, "")
        for call in _calls(program.block):
            if call.operator == "matmul":
                sides = matrices(call, "nullptr", "nullptr", *map(steps.single, call.scalars))
                steps.line(f"if (const std::int64_t needed = matmul_scratch({sides}); needed > spare) spare = needed;")
        if steps.lines:
            lines += ["{", *(f"  {line}" for line in steps.lines), "}"]
    units = max(sum(m.units for m in _used(program.block) if m.place == "scratch") for program in programs)
    return _function(
        f"std::int64_t {name}(const Facts& facts)", [*lines, f"return {units} * scratch_of(facts.n) + 4 * spare;"]
    )


def _calls(block: Block) -> Iterator[Call]:
    for step in block.steps:
        if isinstance(step, Call):
            yield step
        elif isinstance(step, Branch):
            yield from _calls(step.then)
            yield from _calls(step.otherwise)


def _used(block: Block) -> set[Memory]:
    found = {made for made in block.makes if isinstance(made, Memory)}
    for step in block.steps:
        found |= {one for one in needs(step.reads) if isinstance(one, Memory)}
        if isinstance(step, Call):
            found |= set(step.arrays)
        elif isinstance(step, Branch):
            found |= _used(step.then) | _used(step.otherwise)
            found |= {one for entry in step.merged for one in entry[1:] if isinstance(one, Memory)}
    return found


def _array(item: Item, name: str, at: str, constant: bool = False) -> str:
    """A pointer to an array's elements."""
    const = "const " if constant else ""
    if item.stored in POINTERS:
        return f"[[maybe_unused]] auto* const {name} = reinterpret_cast<{const}{POINTERS[item.stored]}*>({at});"
    return f"[[maybe_unused]] const Packed{'Source' if constant else ''}<{item.stored[1:]}> {name}{{{at}}};"

"""C++ of codecs whose units are any programs: encode for each round, decode, and what `init` computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from casync.compll import typed
from casync.compll.cpu.actions import RESIDUAL
from casync.compll.cpu.calls import matrices
from casync.compll.cpu.functions import bytes_of, leaves_of
from casync.compll.cpu.products import Product, fused
from casync.compll.cpu.steps import Steps
from casync.compll.cpu.text import POINTERS, SCALAR_TYPES
from casync.compll.cpu.unpacking import Unpacking, unpacking
from casync.compll.cpu.values import pointer, reads_gradient
from casync.compll.ir.graph import BIT, FLOAT, FLOATS, Memory, Value
from casync.compll.ir.lower import Lowered
from casync.compll.ir.memories import lengths_known, used
from casync.compll.ir.program import (
    Block,
    Branch,
    Call,
    Item,
    Leave,
    Lose,
    Pass,
    Program,
    Reduce,
    Step,
    Store,
    float_sums,
    loses,
    needs,
)

__all__ = ["emit_init", "emit_units"]

_TOO_LONG = "return EncodedUnit{.bytes = -1};"
_CORRUPT = "return -1;"
_RECEIVED = "pick(reinterpret_cast<const float*>(job.received), 0)"


def emit_units(codec: typed.Codec, lowered: Lowered) -> str:
    """The functions encode, decode and, with `init`, propose and agree, for one choice of widths."""
    encoders = [_Encode(codec, fused(program), number) for number, program in enumerate(lowered.rounds)]
    decode = unpacking(fused(lowered.decode))
    parts = [encoder.function() for encoder in encoders]
    encoded = [encoder.program for encoder in encoders]
    parts.append(_decode(codec, decode, encoded))
    calls = "".join(
        f"  if (round == {number}) return feedback ? {encoder.with_feedback} : encode{number}<false>(job);\n"
        for number, encoder in enumerate(encoders)
    )
    calls = f"  const bool feedback = job.residual != nullptr;\n{calls}"
    parts.append(f"EncodedUnit encode_unit(const UnitJob& job, int round) {{\n{calls}  return {{}};\n}}\n")
    programs = [(encoder.program, len(encoder.backed_up)) for encoder in encoders]
    parts.append(_scratch_bytes("scratch_bytes", codec, [*programs, (decode, 0)], encoded))
    return "\n".join(parts)


def emit_init(codec: typed.Codec, lowered: Lowered) -> str:
    """propose and agree."""
    assert lowered.propose is not None and lowered.agree is not None
    steps = Steps(leaves_of(codec), codec.path, 'return __builtin_nanf("");')
    steps.block(lowered.propose.block)
    (item,) = lowered.propose.payload
    assert item.value is not None
    result = steps.single(item.value)
    propose = _function("template <bool kFeedback>\nfloat propose_as(const UnitJob& job)",
                        [*_START, *_memories(codec, lowered.propose), *steps.lines, f"return {result};"])  # fmt: skip
    agreed = Steps(leaves_of(codec) | {"received 0": "received"}, codec.path, "")
    _keep_singles(agreed, codec, lowered.agree)
    agree = _function("void agree(const Facts& facts, float received)", agreed.lines)
    scratch = _scratch_bytes("propose_scratch", codec, [(lowered.propose, 0)])
    return f"{propose}\nfloat propose(const UnitJob& job) {{ return propose_as<false>(job); }}\n\n{scratch}\n{agree}"


_START = (
    "[[maybe_unused]] const Facts& facts = job.facts;",
    "[[maybe_unused]] const float* const accumulated = job.accumulated;",
    "[[maybe_unused]] float* const residual = job.residual;",
    "[[maybe_unused]] const float mid = job.mid;",  # a store might change it, for all the compiler knows
    "[[maybe_unused]] const F32x16 factor = splat(mid);",
    "[[maybe_unused]] const std::int64_t ahead = page_ahead();",
    "[[maybe_unused]] std::byte* scratch = job.scratch;",
    "[[maybe_unused]] Finiteness check;",
)


def _function(signature: str, lines: Sequence[str]) -> str:
    return f"{signature} {{\n{''.join(f'  {line}{chr(10)}' for line in lines)}}}\n"


# --- encode


def _poison(codec: typed.Codec, program: Program, number: int) -> str:
    """Return the function that writes a unit that is not finite: NaN for floats, 0 for integers, and no more than the
    first count; all bits set if there are only integers. All bits of a NaN of 16 bits may be set.
    """
    steps = Steps(leaves_of(codec), codec.path, _TOO_LONG)
    zeros = any(item.counted or item.stored in FLOATS for item in program.payload)
    for item in program.payload:
        if item.counted:
            steps.line(f"if (end - to < 4) {_TOO_LONG}", "write_count(to, kPoisonedCount);", "to += 4;")
            break
        bytes_ = bytes_of(item, steps.length(item.domain)) if item.domain is not None else bytes_of(item, "1")
        fill = 0 if zeros and item.stored not in FLOATS else 255
        poison = f"poison(to, {bytes_});" if item.stored == "f32" else f"fill(to, {fill}, {bytes_});"
        steps.line(f"if (end - to < {bytes_}) {_TOO_LONG}", poison, f"to += {bytes_};")
    return _function(f"EncodedUnit poison{number}(const UnitJob& job)", [
        "[[maybe_unused]] const Facts& facts = job.facts;", "std::byte* to = job.payload;",
        "std::byte* const end = job.payload_end;", *steps.lines,
        "return EncodedUnit{.bytes = to - job.payload, .nonfinite = true};"])  # fmt: skip


class _Encode(Steps):
    """`to` goes through the payload; p1 is where item 1 of it lies. What is not finite is found before a state changes;
    where that cannot be, the arrays `backed_up` are put back.
    """

    def __init__(self, codec: typed.Codec, program: Program, number: int) -> None:
        super().__init__(leaves_of(codec) | {"received": _RECEIVED}, codec.path, _TOO_LONG)
        self._codec, self.program, self._number = codec, program, number
        self._placed = 0
        self._checked: set[int] = set()  # scalars of the payload
        self._read_by_a_look = 2 if codec.properties.feedback == "wrapper" else 1  # arrays
        self.backed_up: list[str] = []

    def function(self) -> str:
        """Return the function that encodes a unit, and the one that writes a unit that is not finite."""
        self._steps()
        self._finish()
        settled = ", .settled = true" if loses(self.program) else ""
        lines = [*_START, "[[maybe_unused]] std::byte* to = job.payload;", "std::byte* const end = job.payload_end;",
                 *_memories(self._codec, self.program), *self.lines,
                 f"return EncodedUnit{{.bytes = to - job.payload{settled}}};"]  # fmt: skip
        poison = _poison(self._codec, self.program, self._number)
        signature = f"template <bool kFeedback>\nEncodedUnit encode{self._number}(const UnitJob& job)"
        return f"{poison}\n{_function(signature, lines)}"

    @property
    def with_feedback(self) -> str:
        """The call; what it left in the residual is settled where that was the gradient."""
        call = f"encode{self._number}<true>(job)"
        return f"settle(job, {call}, decode_as<Into::subtract>)" if self.left else call

    def _steps(self) -> None:
        looked = changed = False
        steps = self.ordered(self.program.block)
        for position, step in enumerate(steps):
            reads = reads_gradient(step)
            if not changed and _changed(step):
                # A pass over the gradient looks at it itself and keeps what it changes, if that is less to move.
                if not looked and not (reads and len(_changed(step)) <= self._read_by_a_look):
                    self._unless("all_finite<kFeedback>(job)")
                    looked = True
                self._before_changes(steps[position:], looked)
                changed = True
            self.checks = reads and not looked
            self.step(step)
            self.kept = {}
            if self.checks:
                self._unless("!check.lost()")
                looked, self.checks = True, False
        if not looked:
            self._unless("all_finite<kFeedback>(job)")

    def _before_changes(self, steps: Sequence[Step], looked: bool) -> None:
        """Look at the payload's scalars, as far as they are there; keep what changes if there is more to look at."""
        later_made = {made for step in steps for made in step.makes}
        for item in self.program.payload:
            if item.value is not None and not later_made.intersection(needs([item.value])):
                self._look_at(item.value)
        scalars = [item.value for item in self.program.payload if item.value is not None and item.value.kind == FLOAT]
        later = any(map(float_sums, steps)) or any(value.number not in self._checked for value in scalars)
        inside = _stored(steps[0])
        if later or not looked:
            self.kept = {name: self._room_for(name) for name in sorted(inside)}
        if later:
            for name in sorted({name for step in steps for name in _changed(step)} - inside):
                room = self._room_for(name)
                self.line(self._copy(name, room, self._array(name)))

    def _room_for(self, name: str) -> str:
        label = self._label(name)
        count = "facts.n" if name == RESIDUAL else f"elements_of(facts, {label})"
        self.line(f"auto* const before{label} = take<float>(scratch, room);",
                  f"[[maybe_unused]] const auto bytes{label} = static_cast<std::size_t>({count}) * 4;")  # fmt: skip
        self.backed_up.append(name)
        return f"before{label}"

    def _label(self, name: str) -> str:
        return "_residual" if name == RESIDUAL else str([state.name for state in self._codec.states].index(name))

    def _array(self, name: str) -> str:
        return "residual" if name == RESIDUAL else f"facts.state[{self._label(name)}]"

    def _copy(self, name: str, to: str, source: str) -> str:
        """There is no residual without feedback."""
        only = "if constexpr (kFeedback) " if name == RESIDUAL else ""
        return f"{only}__builtin_memcpy({to}, {source}, bytes{self._label(name)});"

    def _unless(self, finite: str) -> None:
        """Give up if it is not."""
        self.line(f"if (!({finite})) {{")
        for name in self.backed_up:
            self.line(f"  {self._copy(name, self._array(name), f'before{self._label(name)}')}")
        self.line(f"  return poison{self._number}(job);", "}")

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
            self._place(number, self.program.payload[number])
        self._placed = max(self._placed, item + 1)

    def _place(self, number: int, item: Item) -> None:
        bytes_ = bytes_of(item, self.length(item.domain)) if item.domain is not None else bytes_of(item, "1")
        if item.counted:
            assert item.domain is not None
            count = f"static_cast<std::int32_t>({self.length(item.domain)})"
            self.line(f"if (end - to < 4) {_TOO_LONG}", f"write_count(to, {count});", "to += 4;")
        self.line(f"if (end - to < {bytes_}) {_TOO_LONG}", f"{_array(item, f'p{number}', 'to')}", f"to += {bytes_};")

    def _finish(self) -> None:
        payload = self.program.payload
        if payload:
            self.packed(len(payload) - 1)
        for number, item in enumerate(payload):
            if item.value is not None:
                self._look_at(item.value)
                self.line(f"write_one(p{number}, {self.single(item.value)});")
        _keep_singles(self, self._codec, self.program)


def _changed(step: Step) -> set[str]:
    """Return the states, and the residual, that a step changes."""
    states = {made.name for made in step.makes if isinstance(made, Memory) and made.place == "state"}
    return states | ({RESIDUAL} if _in_residual(step) else set())


def _stored(step: Step) -> set[str]:
    """Return the states, and the residual, of which a step has each element in hand."""
    if not isinstance(step, Pass):
        return set()
    stored = {a.memory.name for a in step.actions if isinstance(a, Store) and a.memory.place == "state"}
    return stored | ({RESIDUAL} if _in_residual(step) else set())


def _in_residual(step: Step) -> bool:
    return isinstance(step, Pass) and any(isinstance(action, (Leave, Lose)) for action in step.actions)


def _keep_singles(steps: Steps, codec: typed.Codec, program: Program) -> None:
    """Assign single states, when nothing reads them as they were any more."""
    names = [state.name for state in codec.states]
    values = [(names.index(name), steps.single(value)) for name, value in program.singles]
    keeps = "if (job.keep) " if steps.keeps_on_request else ""
    steps.line(*(f"{keeps}facts.state[{number}][0] = {value};" for number, value in values))


# --- decode


def _decode(codec: typed.Codec, program: Program, encoded: Sequence[Program]) -> str:
    steps = Steps(leaves_of(codec) | {"received": _RECEIVED}, codec.path, _CORRUPT)
    steps.keeps_on_request = True
    for item in program.payload:
        _unpack(steps, item)
    if not any(item.counted or (item.value is not None and item.value.kind == FLOAT) for item in program.payload):
        arrays = [item.memory for item in program.payload if item.memory is not None and item.stored in FLOATS]
        if arrays:
            first = f"pick({pointer(arrays[0])}, 0, {steps.length(arrays[0].domain)})"
            steps.line(f"poisoned = {first} != {first};")
    steps.line("if (poisoned) {", "  deliver_nan<kInto>(job);", "  return at - job.payload;", "}")
    steps.block(program.block)
    _keep_singles(steps, codec, program)
    lines = [
        "[[maybe_unused]] const Facts& facts = job.facts;", "[[maybe_unused]] std::byte* scratch = job.scratch;",
        "[[maybe_unused]] const std::int64_t ahead = delivery_ahead();",
        "[[maybe_unused]] bool poisoned = false;", "[[maybe_unused]] Finiteness check;",
        "const std::byte* at = job.payload;",
        "const std::byte* const end = job.payload_end;", *_memories(codec, program, encoded), *steps.lines,
        *([] if program.sparse else ["if (check.lost()) report(job);"]), "return at - job.payload;"]  # fmt: skip
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
        steps.line(
            f"if (end - at < {bytes_}) {_CORRUPT}",
            f"[[maybe_unused]] const {SCALAR_TYPES[item.value.kind]} {name} = {_read(item)};",
            f"at += {bytes_};",
        )
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
            f"if ({name} < 0 || {name} > room) {_CORRUPT}")  # fmt: skip
        steps.have(item.domain.length)
    bytes_ = bytes_of(item, steps.length(item.domain))
    steps.line(f"if (end - at < {bytes_}) {_CORRUPT}", _array(item, pointer(item.memory), "at", constant=True),
               f"at += {bytes_};")  # fmt: skip


def _read(item: Item) -> str:
    assert item.value is not None
    text = f"pick(reinterpret_cast<const {POINTERS[item.stored]}*>(at), 0, 1)"
    return f"{text} != 0" if item.value.kind == BIT else text


# --- memories


def _memories(codec: typed.Codec, program: Program, encoded: Sequence[Program] = ()) -> list[str]:
    """m1 is where memory 1 lies: in scratch, or a state, or what was received."""
    names = [state.name for state in codec.states]
    lines = _room(codec, program, encoded)
    for memory in sorted(_used(program.block), key=lambda memory: memory.number):
        name = f"m{memory.number}"
        if memory.place == "scratch":
            length = "2 * room" if memory.padded else "room"
            lines.append(f"auto* const {name} = take<{POINTERS[memory.stored]}>(scratch, {length});")
        elif memory.place == "state":
            lines.append(f"[[maybe_unused]] float* const {name} = facts.state[{names.index(memory.name)}];")
        elif memory.place == "received":
            type_ = f"const {POINTERS[memory.stored]}*"
            lines.append(f"{type_} const {name} = reinterpret_cast<{type_}>(job.received);")
    return lines


def _room(codec: typed.Codec, program: Program, encoded: Sequence[Program] = ()) -> list[str]:
    """Elements that arrays in scratch memory have room for: the unit's, and those of all lengths that are known, to
    decode with those of which encode may have chosen what it counted.
    """
    lines = ["[[maybe_unused]] std::int64_t room = facts.n;"]
    for one in (program, *encoded):
        steps = Steps(leaves_of(codec), codec.path, "")
        for length in lengths_known(one.block, _used(one.block)):
            steps.line(f"if ({steps.single(length)} > room) room = {steps.single(length)};")
        if steps.lines:
            lines += ["{", *(f"  {line}" for line in steps.lines), "}"]
    return lines


def _scratch_bytes(name: str, codec: typed.Codec, programs: Sequence[tuple[Program, int]],
                   encoded: Sequence[Program] = ()) -> str:  # fmt: skip
    """Arrays first, those of a program and as many more, and behind them what matmul needs."""
    lines = ["std::int64_t most = 0;"]
    for program, more in programs:
        scratch = [memory for memory in _used(program.block) if memory.place == "scratch"]
        arrays = sum(2 if memory.padded else 1 for memory in scratch) + more
        lines += ["{", *(f"  {line}" for line in _room(codec, program, encoded)), "  std::int64_t spare = 0;"]
        steps = Steps(leaves_of(codec), codec.path, "")
        for call in _calls(program.block):
            if call.operator == "matmul":
                a, b = matrices(call, "nullptr", "nullptr", *map(steps.single, call.scalars))
                computed = "computed_" if isinstance(call, Product) and call.gradient is not None else ""
                needed = f"{computed}matmul_scratch({a}, {b})"
                steps.line(f"if (const std::int64_t needed = {needed}; needed > spare) spare = needed;")
        lines += [f"  {line}" for line in steps.lines]
        lines += [f"  const std::int64_t bytes = {arrays} * scratch_of(room) + 4 * spare;",
                  "  if (bytes > most) most = bytes;", "}"]  # fmt: skip
    return _function(f"std::int64_t {name}(const Facts& facts)", [*lines, "return most;"])


def _calls(block: Block) -> Iterator[Call]:
    for step in block.steps:
        if isinstance(step, Call):
            yield step
        elif isinstance(step, Branch):
            yield from _calls(step.then)
            yield from _calls(step.otherwise)


def _used(block: Block) -> set[Memory]:
    found = used(block)
    for step in block.steps:
        if isinstance(step, Unpacking):
            found = (found | set(step.repeat.arrays)) - {step.made}
    return found


def _array(item: Item, name: str, at: str, constant: bool = False) -> str:
    """A pointer to an array's elements."""
    const = "const " if constant else ""
    if item.stored in POINTERS:
        return f"[[maybe_unused]] auto* const {name} = reinterpret_cast<{const}{POINTERS[item.stored]}*>({at});"
    return f"[[maybe_unused]] const Packed{'Source' if constant else ''}<{item.stored[1:]}> {name}{{{at}}};"

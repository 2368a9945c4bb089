"""C++ for the CPU: one file per codec, compiled once per instruction set beside the kernels of the core.

The text uses the operations of `codec/cpu/kernels/lanes.hpp` and the decoding of `coded.hpp`; what it looks like:
`casync compll show FILE --target cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from casync.compll import typed
from casync.compll.finiteness import not_finite
from casync.compll.lower import BIT, FLOAT, INT, Lowered, PayloadItem, Value, lower, widths
from casync.errors import NotAvailableError

__all__ = ["LONGEST_UNIT", "emit", "kernels_name"]

LONGEST_UNIT = 4096
_COORDINATES = 128  # that one call of the random generator serves
_CODE_BITS = (1, 2, 4, 8)

_CALLS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder", "neg": "minus",
    "<": "less", ">": "greater", "<=": "at_most", ">=": "at_least", "==": "equal", "!=": "not_equal",
    "&&": "both", "||": "either", "!": "negate", "&": "bit_and", "|": "bit_or", "^": "bit_xor",
    "<<": "shift_left", ">>": "shift_right", "choose": "choose",
    "abs": "magnitude", "min": "smaller", "smaller": "smaller", "max": "larger", "greater": "larger",
    "to_float": "to_float", "to_int": "to_int", "to_bit": "to_bit",
}  # fmt: skip
# Those that lanes.hpp has for sixteen integers.
_INTEGER_LANES = {
    "add", "subtract", "multiply", "bit_and", "bit_or", "bit_xor", "choose", "smaller", "larger",
    "less", "greater", "at_most", "at_least", "equal", "not_equal",
}  # fmt: skip
_LANE_TYPES = {FLOAT: "F32x16", INT: "I32x16", BIT: "Mask16"}
_SCALAR_TYPES = {FLOAT: "float", INT: "std::int32_t", BIT: "bool"}


def kernels_name(codec: str) -> str:
    """The array of UnitKernels that the file of `codec` defines, one for each choice of widths."""
    return f"k{''.join(part.capitalize() for part in codec.split('_'))}"


def emit(codec: typed.Codec, name: str) -> str:
    """The C++ file. Raises `NotAvailableError` for what no code can be generated for yet."""
    choices = widths(codec)
    spaces = [name + "".join(f"_{value}" for value in chosen.values()) for chosen in choices]
    chosen_spaces = zip(choices, spaces, strict=True)
    parts = [_Emitter(codec, lower(codec, chosen)).kernels(space) for chosen, space in chosen_spaces]
    table = ",\n    ".join(f"{{{space}::encode, {space}::merge}}" for space in spaces)
    array = kernels_name(name)
    return f"""// Generated from {name}.cll by casync compll.
#include "codec/cpu/kernels/coded.hpp"
#include "codec/cpu/kernels/philox.hpp"

namespace casync::codec::CASYNC_KERNEL_ISA {{
namespace {{

{"".join(parts)}}}  // namespace

extern const UnitKernels {array}[];
const UnitKernels {array}[]{{
    {table}}};

}}  // namespace casync::codec::CASYNC_KERNEL_ISA
"""


def _walk(values: Iterable[Value], into_reductions: bool = True) -> list[Value]:
    """The values and all they are made of, operands first; of one pass, only what is made of elements in it."""
    seen: dict[int, Value] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value.number not in seen:
            seen[value.number] = value
            if into_reductions or value.op != "reduce":
                waiting.extend(value.operands)
    return [seen[number] for number in sorted(seen)]


class _Emitter:
    def __init__(self, codec: typed.Codec, lowered: Lowered) -> None:
        self._codec = codec
        self._payload = lowered.payload
        self._decoded = lowered.decoded
        if sum(item.value.lanes for item in self._payload) != 1 or not self._payload[-1].value.lanes:
            raise self._not_yet("a payload that is not scalars and then one array of the unit's length")
        self._codes = self._payload[-1]
        if self._codes.floating or self._codes.bits not in _CODE_BITS:
            raise self._not_yet(f"an array of {self._codes.bits}-bit elements in a payload")
        self._values = _walk(item.value for item in self._payload)
        self._reductions = [value for value in self._values if value.op == "reduce"]
        unit = self._codec.properties.unit
        aligned = isinstance(unit, typed.Constant) and unit.value % _COORDINATES == 0
        if not aligned and any(value.op == "stochastic_floor" for value in self._values):
            raise self._not_yet(f"random numbers in units that are no multiple of {_COORDINATES}")
        self._sums = [value for value in self._reductions if _is_sum(value)]
        self._seen_in_sums = all(
            any(not_finite(value.operands[0], element) for value in self._sums)
            for element in (math.nan, math.inf, -math.inf)
        )
        self._header = sum(self._bytes(item) for item in self._payload[:-1])

    def _not_yet(self, what: str) -> NotAvailableError:
        return NotAvailableError(f"{self._codec.path}: no code can be generated for {what} yet")

    def _bytes(self, item: PayloadItem) -> int:
        if item.value.kind != FLOAT or item.bits != 32:
            raise self._not_yet(f"a scalar of {item.bits} bits in a payload")
        return item.bits // 8

    def kernels(self, space: str) -> str:
        feedback = self._codec.properties.feedback == "wrapper"
        bits = self._codes.bits
        run, residual = "encode_as<false>(job)", ""
        if feedback:
            run = f"job.residual != nullptr ? encode_as<true>(job) : {run}"
            residual = f"\n  if (job.residual != nullptr && !nonfinite) leave_residual<Decoder, {bits}>(job);"
        return f"""namespace {space} {{

{self._decoder()}
using Payload = Coded<Decoder, {bits}>;

{self._encode()}
bool encode(const UnitJob& job) {{
  const bool nonfinite = {run};{residual}
  return nonfinite;
}}

bool merge(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {{
  return merge_fused<Payload>(sources, count, out, n, streaming);
}}

}}  // namespace {space}

"""

    # --- decode

    def _decoder(self) -> str:
        """What does not depend on the code is computed when the decoder is made."""
        values = _walk([self._decoded])
        if any(value.op == "size" for value in values):
            raise self._not_yet("`gradient.size` in decode")
        scalars = [value for value in values if not value.lanes]
        inside = [value for value in values if value.lanes]
        wide = self._codes.bits > 1
        spread = self._spread(inside) if wide else []
        members = [f"{_SCALAR_TYPES[value.kind]} v{value.number};" for value in scalars]
        members += [f"{_LANE_TYPES[value.kind]} w{value.number};" for value in spread]
        lines = []
        for value in scalars:
            if value.op == "field":
                lines.append(f"__builtin_memcpy(&v{value.number}, payload + {4 * value.data}, 4);")
            else:
                lines.append(f"v{value.number} = {self._text(value, False)};")
        lines += [f"w{value.number} = lanes(v{value.number});" for value in spread]
        calls = [self._element(inside, False)] + ([self._element(inside, True)] if wide else [])
        return f"""struct Decoder {{
  static constexpr std::size_t kHeader = {self._header};
{"".join(f"  {member}{chr(10)}" for member in members)}
  CASYNC_INLINE explicit Decoder(const std::byte* payload) {{
{"".join(f"    {line}{chr(10)}" for line in lines)}  }}
{"".join(calls)}}};
"""

    def _element(self, values: list[Value], wide: bool) -> str:
        """The value of a code, or of sixteen."""
        types = _LANE_TYPES if wide else _SCALAR_TYPES
        kind = BIT if self._codes.bits == 1 else INT
        (code,) = (value for value in values if value.op == "code")
        body = "".join(f"    {self._define(value, wide)}\n" for value in values if value is not code)
        return f"""  CASYNC_INLINE {types[FLOAT]} operator()({types[kind]} v{code.number}) const {{
{body}    return {self._name(self._decoded, wide)};
  }}
"""

    @staticmethod
    def _spread(values: list[Value]) -> list[Value]:
        """The single values that these need in all lanes, as w1, w2, ..."""
        single = {v.number: v for value in values for v in value.operands if not v.lanes}
        return [single[number] for number in sorted(single)]

    # --- encode

    def _encode(self) -> str:
        last = max([self._codes.value.level, *(item.value.level - 1 for item in self._payload[:-1])])
        lines: list[str] = [
            "const std::int64_t n = job.n;",
            "const float* const accumulated = job.accumulated;",
            "[[maybe_unused]] const float* const residual = job.residual;",
            "std::byte* const payload = job.payload;",
            "const F32x16 factor = splat(job.mid);",
            *([] if self._seen_in_sums else ["Finiteness check;"]),
        ]
        if self._codes.bits > 1:
            lines.append(f"alignas(64) std::uint8_t codes[{LONGEST_UNIT + 16}];")
        done: set[int] = set()
        self._spread_before: set[int] = set()
        for level in range(last + 1):
            lines += self._scalars(level, done)
            lines += self._pass(level)
        lines += self._scalars(last + 1, done)
        lines += self._write()
        body = "".join(f"  {line}\n" if line else "\n" for line in lines)
        return f"template <bool kFeedback>\nbool encode_as(const UnitJob& job) {{\n{body}}}\n"

    def _scalars(self, level: int, done: set[int]) -> Iterator[str]:
        for value in self._values:
            if value.lanes or value.op == "reduce" or value.level > level or value.number in done:
                continue
            done.add(value.number)
            yield self._define(value)

    def _pass(self, level: int) -> list[str]:
        """One loop over the unit: the reductions and the packing of this level."""
        reductions = [value for value in self._reductions if value.operands[0].level == level]
        packs = self._codes.value.level == level
        if not reductions and not packs:
            return []
        consumed = [value.operands[0] for value in reductions] + ([self._codes.value] if packs else [])
        inside = [value for value in _walk(consumed, into_reductions=False) if value.lanes]
        draws = sorted({value.data[0] for value in inside if value.op == "stochastic_floor"})
        if draws and any(map(_is_sum, reductions)):
            raise self._not_yet("a float sum and random numbers in one pass")
        spread = [value for value in self._spread(inside) if value.number not in self._spread_before]
        self._spread_before |= {value.number for value in spread}
        lines = [f"[[maybe_unused]] const auto w{value.number} = lanes(v{value.number});" for value in spread]
        lines += [line for value in reductions for line in self._start(value)]
        step = ["const bool whole = count == 16;"] if reductions else []
        for value in inside:
            if value.op == "gradient":
                step += self._gradient(value, level == 0)
            else:
                step.append(self._define(value, True))
        step += [self._accumulate(value) for value in reductions]
        step += self._pack() if packs else []
        parameters = "".join(f", const I32x16& r{site}" for site in draws)
        lines.append(f"const auto step{level} = [&](std::int64_t i, std::int64_t count, [[maybe_unused]] int page"
                     f"{parameters}) __attribute__((always_inline)) {{")  # fmt: skip
        lines += [f"  {line}" for line in step]
        lines.append("};")
        lines += self._random(level, draws) if draws else self._loop(level, reductions)
        return lines + [line for value in reductions for line in self._finish(value)]

    def _gradient(self, value: Value, first: bool) -> list[str]:
        name = f"v{value.number}"
        lines = [
            "F32x16 x = count == 16 ? load(accumulated + i) : load_first(accumulated + i, count);",
            "if constexpr (kFeedback)",
            "  x = x + (count == 16 ? load(residual + i) : load_first(residual + i, count));",
            f"const F32x16 {name} = x * factor;",
        ]
        return [*lines, f"check.see({name});"] if first and not self._seen_in_sums else lines

    def _loop(self, level: int, reductions: list[Value]) -> list[str]:
        """Block by block of the fixed tree. The first time memory is read it may be four pages side by side."""
        sums = [value for value in reductions if _is_sum(value)]
        clear = [f"for (F32x16& lane : l{value.number}) lane = F32x16{{}};" for value in sums]
        fold_all = [
            f"for (const F32x16& lane : l{value.number}) v{value.number} += fold<Add>(lane);" for value in sums
        ]
        fold_one = [f"v{value.number} += fold<Add>(l{value.number}[0]);" for value in sums]
        lines = ["{", "  std::int64_t block = 0;"]
        if level == 0:
            lines += [
                "  if (pages_side_by_side()) {",
                "    for (; block + 4 * kPage <= n; block += 4 * kPage) {",
                *(f"      {line}" for line in clear),
                "      for (std::int64_t j = block; j < block + kPage; j += 16) {",
                "        for (int page = 0; page < 4; ++page) {",
                "          const std::int64_t i = j + page * kPage;",
                "          fetch_ahead(accumulated + i, kFeedback ? kTwoStreams : 4 * kOneStream);",
                "          if constexpr (kFeedback) fetch_ahead(residual + i, kTwoStreams);",
                f"          step{level}(i, 16, page);",
                "        }",
                "      }",
                *(f"      {line}" for line in fold_all),
                "    }",
                "  }",
            ]
        return [
            *lines,
            "  for (; block < n; block += kPage) {",
            "    const std::int64_t end = block + kPage < n ? block + kPage : n;",
            *(f"    l{value.number}[0] = F32x16{{}};" for value in sums),
            "    std::int64_t i = block;",
            f"    for (; i + 16 <= end; i += 16) step{level}(i, 16, 0);",
            f"    if (i < end) step{level}(i, end - i, 0);",
            *(f"    {line}" for line in fold_one),
            "  }",
            "}",
        ]

    def _random(self, level: int, draws: list[int]) -> list[str]:
        """The same with random numbers, which come for 128 elements at a time."""
        lines = ["for (std::int64_t begin = 0; begin < n; begin += 128) {"]
        for site in draws:
            lines += [
                f"  U32x16 words{site}[4];",
                f"  RandomKey key{site} = job.key;",
                f"  key{site}.stream += {site}U << 20;",
                f"  draw(key{site}, job.key.coordinate + static_cast<std::uint64_t>(begin), words{site});",
            ]
        arguments = "".join(f", draws_at(words{site}, j)" for site in draws)
        return [
            *lines,
            "  for (int j = 0; j < 8; ++j) {",
            "    const std::int64_t i = begin + 16 * j;",
            "    if (i >= n) break;",
            "    if (i + 16 <= n)",
            f"      step{level}(i, 16, 0{arguments});",
            "    else",
            f"      step{level}(i, n - i, 0{arguments});",
            "  }",
            "}",
        ]

    # --- reductions

    def _start(self, value: Value) -> list[str]:
        """v1 is the result, l1 the lanes of each page."""
        name, lanes = f"v{value.number}", f"l{value.number}"
        operand = value.operands[0]
        if _is_sum(value):
            return [f"float {name} = 0;", f"F32x16 {lanes}[4];"]
        if value.data == "add" and operand.kind == BIT:
            return [f"std::int32_t {name} = 0;"]
        if value.data in ("smaller", "greater") and value.kind == FLOAT and operand.op == "gradient":
            first = "(kFeedback ? accumulated[0] + residual[0] : accumulated[0]) * job.mid"
            return [f"F32x16 {lanes}[4];", f"for (F32x16& lane : {lanes}) lane = splat({first});"]
        if value.data == "maxAbs" and value.kind == FLOAT:
            return [f"F32x16 {lanes}[4]{{}};"]
        raise self._not_yet(f"reduce(..., {value.data}) as it is used here")

    def _accumulate(self, value: Value) -> str:
        lanes, operand = f"l{value.number}[page]", self._name(value.operands[0], True)
        if _is_sum(value):
            mask, summand = self._masked(value.operands[0])
            if mask is None:
                return f"{lanes} = {lanes} + (whole ? {summand} : keep(first_lanes(count), {summand}));"
            return f"{lanes} = add_where(whole ? {mask} : both({mask}, first_lanes(count)), {lanes}, {summand});"
        if value.data == "add":
            return f"v{value.number} += __builtin_popcount(bits_of({operand}) & ((1U << count) - 1U));"
        function = "smaller" if value.data == "smaller" else "larger"
        candidate = f"magnitude({operand})" if value.data == "maxAbs" else operand
        return (
            f"{lanes} = {function}(whole ? {candidate} : select(first_lanes(count), {candidate}, {lanes}), {lanes});"
        )

    def _masked(self, value: Value) -> tuple[str | None, str]:
        """A summand that is zero where a condition says so: the mask of the others, and what they are.

        A sum that begins with +0 never becomes -0, so leaving a zero out changes no bit.
        """
        if value.op == "choose":
            condition, yes, no = value.operands
            if condition.lanes and _is_zero(no):
                return self._name(condition, True), self._name(yes, True)
            if condition.lanes and _is_zero(yes):
                return f"negate({self._name(condition, True)})", self._name(no, True)
        return None, self._name(value, True)

    @staticmethod
    def _finish(value: Value) -> list[str]:
        if value.data == "add":
            return []
        function, tree = ("smaller", "Smaller") if value.data == "smaller" else ("larger", "Larger")
        lanes = f"l{value.number}"
        return [
            f"for (int page = 1; page < 4; ++page) {lanes}[0] = {function}({lanes}[page], {lanes}[0]);",
            f"const float v{value.number} = fold<{tree}>({lanes}[0]);",
        ]

    # --- the payload

    def _pack(self) -> list[str]:
        name = self._name(self._codes.value, True)
        if self._codes.bits == 1:
            return [
                f"const auto packed = static_cast<std::uint16_t>(bits_of({name}) & ((1U << count) - 1U));",
                f"__builtin_memcpy(payload + {self._header} + i / 8, &packed, count > 8 ? 2 : 1);",
            ]
        return [f"store_bytes(codes + i, unsigned_of({name}));"]

    def _write(self) -> list[str]:
        bits = self._codes.bits
        scalars = [item.value for item in self._payload[:-1]]
        codes = f"payload + {self._header}"
        lines = [f"const auto bytes = static_cast<std::size_t>((n * {bits} + 7) / 8);"]
        checks = [] if self._seen_in_sums else ["check.lost()"]
        checks += [f"!finite(v{value.number})" for value in [*self._sums, *scalars]]
        lines.append(f"const bool nonfinite = {' || '.join(checks)};")
        if scalars:
            values = ", ".join(f"v{value.number}" for value in scalars)
            lines.append(f"float header[{len(scalars)}]{{{values}}};")
            lines.append("if (nonfinite) for (float& value : header) value = __builtin_nanf(\"\");")
            lines.append("__builtin_memcpy(payload, header, sizeof header);")
        if bits > 1:
            lines.append("__builtin_memset(codes + n, 0, 16);  // the last byte's unused bits are zero")
            packed = "static_cast<std::int64_t>(bytes)"
            pack = f"pack<{bits}>(codes, {packed}, {codes});"
            lines.append(f"__builtin_memcpy({codes}, codes, bytes);" if bits == 8 else pack)
        fill = "0" if scalars else "0xff"
        lines.append(f"if (nonfinite) __builtin_memset({codes}, {fill}, bytes);")
        return [*lines, "return nonfinite;"]

    # --- values

    def _name(self, value: Value, wide: bool) -> str:
        return f"w{value.number}" if wide and not value.lanes else f"v{value.number}"

    def _define(self, value: Value, wide: bool = False) -> str:
        types = _LANE_TYPES if wide and value.lanes else _SCALAR_TYPES
        # A zero may end as `keep`, and what is kept as part of a sum.
        unused = "[[maybe_unused]] " if value.op in ("constant", "choose") else ""
        return f"{unused}const {types[value.kind]} v{value.number} = {self._text(value, wide)};"

    def _text(self, value: Value, wide: bool) -> str:
        if value.op == "constant":
            return _constant(value)
        if value.op == "size":
            return "static_cast<std::int32_t>(n)"
        operands = [self._name(operand, wide) for operand in value.operands]
        if value.op == "saturate":
            return f"saturate({operands[0]}, {value.data[0]}, {value.data[1]})"
        if value.op == "stochastic_floor":
            site, least, most = value.data
            return f"stochastic_floor({operands[0]}, r{site}, {least}.0F, {most}.0F)"
        if value.op == "choose" and value.kind == FLOAT:
            _, yes, no = value.operands
            if _is_zero(no):
                return f"keep({operands[0]}, {operands[1]})"
            if _is_zero(yes):
                return f"drop({operands[0]}, {operands[2]})"
        call = _CALLS.get(value.op)
        if call is None or (value.lanes and self._integers(value) and call not in _INTEGER_LANES):
            raise self._not_yet(f"`{value.op}` of {value.operands[0].kind} arrays")
        return f"{call}({', '.join(operands)})"

    @staticmethod
    def _integers(value: Value) -> bool:
        return value.operands[-1].kind == INT and value.op not in ("to_float", "to_bit")


def _is_sum(value: Value) -> bool:
    return value.data == "add" and value.kind == FLOAT


def _is_zero(value: Value) -> bool:
    return value.op == "constant" and math.copysign(1, value.data) * (value.data == 0) == 1


def _constant(value: Value) -> str:
    if value.kind != FLOAT:
        return str(int(value.data)) if value.kind == INT else str(bool(value.data)).lower()
    number = float(value.data)
    if number != number:
        return '__builtin_nanf("")'
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}__builtin_inff()"
    return f"{number.hex()}F"



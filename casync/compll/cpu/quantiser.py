"""C++ of quantisers: a unit's payload is a header of float scalars and one code of 1, 2, 4 or 8 bits for each element.

Units are short enough to stay in the first-level cache, memory is read four pages side by side where that is faster,
and decoding goes by tables where codes are few (codec/cpu/kernels/coded.hpp).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeGuard

from casync.compll import typed
from casync.compll.cpu.ahead import GRADIENT_AHEAD
from casync.compll.cpu.functions import leaves_of
from casync.compll.cpu.reduce import Reduction
from casync.compll.cpu.text import LANE_TYPES, SCALAR_TYPES, name_of, text_of
from casync.compll.cpu.values import elements_inside
from casync.compll.ir.finiteness import not_finite
from casync.compll.ir.graph import FLOAT, UNIT, Value, walk
from casync.compll.ir.lower import Lowered
from casync.compll.ir.program import Deliver, Lose, Pack, Pass, Program, Reduce, Step
from casync.errors import NotAvailableError

__all__ = ["LONGEST_UNIT", "emit_quantiser", "is_quantiser"]

LONGEST_UNIT = 4096
_PAGES = 4 * 1024  # elements in the pages that are read side by side
_COORDINATES = 128  # that one call of the random generator serves
_CODES = {"u1": 1, "u2": 2, "u4": 4, "u8": 8}


def is_quantiser(codec: typed.Codec, lowered: Lowered) -> bool:
    """Whether a file is one, with units of at most `LONGEST_UNIT`."""
    if codec.properties.rounds != ("reencode",) or len(lowered.rounds) != 1 or _longest(codec) > LONGEST_UNIT:
        return False
    (encode,) = lowered.rounds
    return (
        all(_simple(step, (Reduce, Pack, Lose)) for step in encode.block.steps)
        and [type(a) for step in lowered.decode.block.steps if _simple(step, (Deliver,)) for a in step.actions]
        == [Deliver]
        and len(lowered.decode.block.steps) == 1
        and _coded(encode)
        and _coded(lowered.decode)
    )


def _longest(codec: typed.Codec) -> int:
    if codec.properties.unit_rows is not None:
        return codec.properties.unit_rows[1]
    unit = codec.properties.unit
    return int(unit.value) if isinstance(unit, typed.Constant) else LONGEST_UNIT + 1


def _simple(step: Step, actions: tuple[type, ...]) -> TypeGuard[Pass]:
    if not isinstance(step, Pass) or step.domain is not UNIT or step.chunk is not None:
        return False
    leaves = {value.op for value in elements_inside(step.reads)}
    return all(isinstance(a, actions) for a in step.actions) and not leaves & {"pick", "index"}


def _coded(program: Program) -> bool:
    *scalars, codes = program.payload
    plain = all(item.value is not None and item.stored == "f32" for item in scalars)
    return plain and codes.domain is UNIT and codes.stored in _CODES and not codes.counted


def _packing(program: Program) -> Iterator[Pass]:
    """The passes without what they leave in the residual: decoding a unit in the cache is as fast."""
    for step in program.block.steps:
        assert isinstance(step, Pass)
        actions = [action for action in step.actions if not isinstance(action, Lose)]
        if actions:
            yield Pass(step.domain, step.chunk, actions)


def emit_quantiser(codec: typed.Codec, lowered: Lowered) -> str:
    """The functions `encode` and `merge` of one choice of widths."""
    return _Emitter(codec, lowered).kernels()


class _Emitter:
    def __init__(self, codec: typed.Codec, lowered: Lowered) -> None:
        self._codec = codec
        self._encoded, self._decoded = lowered.rounds[0], lowered.decode
        self._passes = list(_packing(self._encoded))
        self._bits = _CODES[self._encoded.payload[-1].stored]
        self._scalars = [item.value for item in self._encoded.payload if item.value is not None]
        self._header = 4 * len(self._scalars)
        self._leaves = leaves_of(codec)
        actions = [action for step in self._passes for action in step.actions]
        (self._codes,) = [action.value for action in actions if isinstance(action, Pack)]
        self._sums = [action for action in actions if isinstance(action, Reduce) and action.float_sum]
        inside = [value for step in self._passes for value in elements_inside(step.reads)]
        self._longest = _longest(codec)
        unit = codec.properties.unit
        aligned = isinstance(unit, typed.Constant) and unit.value % _COORDINATES == 0
        if not aligned and any(value.op == "stochastic_floor" for value in inside):
            raise self._not_yet(f"random numbers in units that are no multiple of {_COORDINATES}")
        self._seen_in_sums = all(
            any(not_finite(action.value, element) for action in self._sums)
            for element in (math.nan, math.inf, -math.inf)
        )

    def _not_yet(self, what: str) -> NotAvailableError:
        return NotAvailableError(f"{self._codec.path}: no code can be generated for {what} yet")

    def kernels(self) -> str:
        feedback = self._codec.properties.feedback == "wrapper"
        bits = self._bits
        run, residual = "encode_as<false>(job)", ""
        if feedback:
            run = f"job.residual != nullptr ? encode_as<true>(job) : {run}"
            residual = f"\n  if (job.residual != nullptr && !nonfinite) leave_residual<Decoder, {bits}>(job);"
        return f"""{self._decoder()}
using Payload = Coded<Decoder, {bits}>;

{self._encode()}
bool encode(const UnitJob& job) {{
  const bool nonfinite = {run};{residual}
  return nonfinite;
}}

bool merge(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {{
  return merge_fused<Payload>(sources, count, out, n, streaming);
}}
"""

    # --- decode

    def _decoder(self) -> str:
        """Return the decoder's C++. What does not depend on the code is computed when the decoder is made."""
        (step,) = self._decoded.block.steps
        assert isinstance(step, Pass)
        (delivered,) = step.actions
        values = walk([delivered.value])
        if any(value.op == "size" for value in values):
            raise self._not_yet("`gradient.size` in decode")
        scalars = [value for value in values if not value.lanes]
        inside = [value for value in values if value.lanes]
        wide = self._bits > 1
        spread = self._spread(inside) if wide else []
        members = [f"{SCALAR_TYPES[value.kind]} v{value.number};" for value in scalars]
        members += [f"{LANE_TYPES[value.kind]} w{value.number};" for value in spread]
        lines = []
        for value in scalars:
            if value.op == "field":
                lines.append(f"__builtin_memcpy(&v{value.number}, payload + {4 * value.data}, 4);")
            else:
                lines.append(f"v{value.number} = {self._text(value, False)};")
        lines += [f"w{value.number} = lanes(v{value.number});" for value in spread]
        calls = [self._element(inside, delivered.value, False)]
        calls += [self._element(inside, delivered.value, True)] if wide else []
        return f"""struct Decoder {{
  static constexpr std::size_t kHeader = {self._header};
{"".join(f"  {member}{chr(10)}" for member in members)}
  CASYNC_INLINE Decoder([[maybe_unused]] const std::byte* payload, [[maybe_unused]] const Facts& facts) {{
{"".join(f"    {line}{chr(10)}" for line in lines)}  }}
{"".join(calls)}}};
"""

    def _element(self, values: list[Value], result: Value, wide: bool) -> str:
        """The value of a code, or of sixteen."""
        types = LANE_TYPES if wide else SCALAR_TYPES
        (code,) = (value for value in values if value.op == "load")
        body = "".join(f"    {self._define(value, wide)}\n" for value in values if value is not code)
        return f"""  CASYNC_INLINE {types[FLOAT]} operator()({types[code.kind]} v{code.number}) const {{
{body}    return {name_of(result, wide)};
  }}
"""

    @staticmethod
    def _spread(values: list[Value]) -> list[Value]:
        """Return the single values that these need in all lanes, as w1, w2, ..."""
        single = {v.number: v for value in values for v in value.operands if not v.lanes}
        return [single[number] for number in sorted(single)]

    # --- encode

    def _encode(self) -> str:
        lines: list[str] = [
            "[[maybe_unused]] const Facts& facts = job.facts;",
            "const std::int64_t n = facts.n;",
            "const float* const accumulated = job.accumulated;",
            "[[maybe_unused]] const float* const residual = job.residual;",
            "std::byte* const payload = job.payload;",
            "const F32x16 factor = splat(job.mid);",
            *([] if self._seen_in_sums else ["Finiteness check;"]),
        ]
        if self._bits > 1:
            lines.append(f"alignas(64) std::uint8_t codes[{LONGEST_UNIT + 16}];")
        self._done: set[int] = set()
        self._spread_before: set[int] = set()
        for number, step in enumerate(self._passes):
            lines += self._pass(number, step)
        for value in self._scalars:
            lines += self._single(value)
        lines += self._write()
        body = "".join(f"  {line}\n" if line else "\n" for line in lines)
        return f"template <bool kFeedback>\nbool encode_as(const UnitJob& job) {{\n{body}}}\n"

    def _single(self, value: Value) -> Iterator[str]:
        """The lines that define a single value, where it is not yet."""
        for part in walk([value]):
            if part.number not in self._done:
                self._done.add(part.number)
                yield self._define(part)

    def _pass(self, number: int, step: Pass) -> list[str]:
        """One loop over the unit: the reductions and the packing."""
        reductions = [Reduction(action, pages=4) for action in step.actions if isinstance(action, Reduce)]
        packs = any(isinstance(action, Pack) for action in step.actions)
        inside = elements_inside(step.reads)
        draws = sorted({value.data[0] for value in inside if value.op == "stochastic_floor"})
        if draws and any(reduction.action.float_sum for reduction in reductions):
            raise self._not_yet("a float sum and random numbers in one pass")
        spread = [value for value in self._spread(inside) if value.number not in self._spread_before]
        self._spread_before |= {value.number for value in spread}
        starts = [reduction.action.start for reduction in reductions if reduction.action.start is not None]
        lines = [line for value in (*spread, *starts) for line in self._single(value)]
        lines += [f"[[maybe_unused]] const auto w{value.number} = lanes(v{value.number});" for value in spread]
        lines += [line for reduction in reductions for line in reduction.start("n")]
        body = ["const bool whole = count == 16;"] if reductions else []
        if 0 < number == len(self._passes) - 1:
            lines.append("const std::int64_t ahead = next_unit_ahead(n);")
            body += GRADIENT_AHEAD
        for value in inside:
            if value.op == "gradient":
                body += self._gradient(value, number == 0)
            else:
                body.append(self._define(value, True))
        body += [reduction.accumulate() for reduction in reductions]
        body += self._pack() if packs else []
        parameters = "".join(f", const I32x16& r{site}" for site in draws)
        lines.append(f"const auto step{number} = [&](std::int64_t i, std::int64_t count, [[maybe_unused]] int page"
                     f"{parameters}) __attribute__((always_inline)) {{")  # fmt: skip
        lines += [f"  {line}" for line in body]
        lines.append("};")
        lines += self._random(number, draws) if draws else self._loop(number, reductions)
        self._done |= {r.action.result.number for r in reductions if r.action.result is not None}
        return lines + [line for reduction in reductions for line in reduction.finish()]

    def _gradient(self, value: Value, first: bool) -> list[str]:
        name = f"v{value.number}"
        lines = [
            "F32x16 x = count == 16 ? load(accumulated + i) : load_first(accumulated + i, count);",
            "if constexpr (kFeedback)",
            "  x = x + (count == 16 ? load(residual + i) : load_first(residual + i, count));",
            f"const F32x16 {name} = x * factor;",
        ]
        return [*lines, f"check.see({name});"] if first and not self._seen_in_sums else lines

    def _loop(self, number: int, reductions: list[Reduction]) -> list[str]:
        """Block by block of the fixed tree. The first time memory is read it may be four pages side by side, in a unit
        that has as many."""
        clear = [line for reduction in reductions for line in reduction.clear()]
        fold_all = [line for reduction in reductions for line in reduction.fold(several=True)]
        fold_one = [line for reduction in reductions for line in reduction.fold()]
        lines = ["{", "  std::int64_t block = 0;"]
        fetch: list[str] = []
        if number == 0:
            last = "true" if len(self._passes) == 1 else "false"
            lines.append(f"  const std::int64_t ahead = unit_ahead(kFeedback, {last});")
            fetch = [f"      {line}" for line in GRADIENT_AHEAD]
        if number == 0 and self._longest >= _PAGES:
            lines += [
                "  if (reading() == Reading::side_by_side) {",
                "    for (; block + 4 * kPage <= n; block += 4 * kPage) {",
                *(f"      {line}" for line in clear),
                "      for (std::int64_t j = block; j < block + kPage; j += 16) {",
                "        for (int page = 0; page < 4; ++page) {",
                "          const std::int64_t i = j + page * kPage;",
                "          fetch_ahead(accumulated + i, kFeedback ? ahead : 4 * ahead);",
                "          if constexpr (kFeedback) fetch_ahead(residual + i, ahead);",
                f"          step{number}(i, 16, page);",
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
            *(f"    {line}" for line in (line for reduction in reductions for line in reduction.clear_one())),
            "    std::int64_t i = block;",
            "    for (; i + 16 <= end; i += 16) {",
            *fetch,
            f"      step{number}(i, 16, 0);",
            "    }",
            f"    if (i < end) step{number}(i, end - i, 0);",
            *(f"    {line}" for line in fold_one),
            "  }",
            "}",
        ]

    def _random(self, number: int, draws: list[int]) -> list[str]:
        """Return the same loop with random numbers, which come for 128 elements at a time."""
        lines = ["for (std::int64_t begin = 0; begin < n; begin += 128) {"]
        for site in draws:
            lines += [
                f"  U32x16 words{site}[4];",
                f"  RandomKey key{site} = facts.key;",
                f"  key{site}.stream += {site}U << 20;",
                f"  draw(key{site}, facts.key.coordinate + static_cast<std::uint64_t>(begin), words{site});",
            ]
        arguments = "".join(f", draws_at(words{site}, j)" for site in draws)
        return [
            *lines,
            "  for (int j = 0; j < 8; ++j) {",
            "    const std::int64_t i = begin + 16 * j;",
            "    if (i >= n) break;",
            "    if (i + 16 <= n)",
            f"      step{number}(i, 16, 0{arguments});",
            "    else",
            f"      step{number}(i, n - i, 0{arguments});",
            "  }",
            "}",
        ]

    # --- the payload

    def _pack(self) -> list[str]:
        name = name_of(self._codes, True)
        if self._bits == 1:
            return [
                f"const auto packed = static_cast<std::uint16_t>(bits_of({name}) & ((1U << count) - 1U));",
                f"__builtin_memcpy(payload + {self._header} + i / 8, &packed, count > 8 ? 2 : 1);",
            ]
        return [f"store_bytes(codes + i, unsigned_of({name}));"]

    def _write(self) -> list[str]:
        bits, scalars = self._bits, self._scalars
        codes = f"payload + {self._header}"
        lines = [f"const auto bytes = static_cast<std::size_t>((n * {bits} + 7) / 8);"]
        checks = [] if self._seen_in_sums else ["check.lost()"]
        summed = [action.result for action in self._sums if action.result is not None]
        checks += [f"!finite(v{value.number})" for value in [*summed, *scalars]]
        lines.append(f"const bool nonfinite = {' || '.join(checks)};")
        if scalars:
            values = ", ".join(f"v{value.number}" for value in scalars)
            lines.append(f"float header[{len(scalars)}]{{{values}}};")
            lines.append('if (nonfinite) for (float& value : header) value = __builtin_nanf("");')
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

    def _define(self, value: Value, wide: bool = False) -> str:
        types = LANE_TYPES if wide and value.lanes else SCALAR_TYPES
        # A zero may end as `keep`, and what is kept as part of a sum.
        unused = "[[maybe_unused]] " if value.op in ("constant", "choose") else ""
        return f"{unused}const {types[value.kind]} v{value.number} = {self._text(value, wide)};"

    def _text(self, value: Value, wide: bool) -> str:
        return text_of(value, wide, self._leaf)

    def _leaf(self, value: Value, wide: bool) -> str:
        if value.op == "pick" and value.data is None:
            return f"gradient_at<kFeedback>(job, {name_of(value.operands[0], wide)})"
        key = value.op if value.op in self._leaves else f"{value.op} {value.data}"
        if key not in self._leaves:
            raise self._not_yet(f"`{value.data or value.op}` here")
        return self._leaves[key]

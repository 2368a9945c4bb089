"""C++ for the CPU: one file per codec, compiled once per instruction set beside the kernels of the core.

The text uses the operations of `codec/cpu/kernels/`; what it looks like: `casync compll show FILE --target cpu`.
"""

from __future__ import annotations

from casync.compll import typed
from casync.compll.cpu.functions import functions
from casync.compll.cpu.quantiser import emit_quantiser, is_quantiser
from casync.compll.cpu.units import emit_init, emit_units
from casync.compll.ir.choices import Choice, choices_of
from casync.compll.ir.lower import lower

__all__ = ["emit", "kernels_name"]


def kernels_name(codec: str) -> str:
    """The array of UnitKernels that the file of `codec` defines, one for each choice of widths."""
    return f"k{''.join(part.capitalize() for part in codec.split('_'))}"


def emit(codec: typed.Codec, name: str) -> str:
    """The C++ file. Raises `NotAvailableError` for what no code can be generated for yet."""
    choices = choices_of(codec)
    spaces = [f"of_{name}" + "".join(f"_{bits}" for bits in choice.widths.values()) for choice in choices]
    found = [_choice(codec, choice, space) for choice, space in zip(choices, spaces, strict=True)]
    table = ",\n".join(fields for _, fields in found)
    array = kernels_name(name)
    return f"""// Generated from {name}.cll by casync compll.
#include "codec/cpu/kernels/operators/hadamard.hpp"
#include "codec/cpu/kernels/operators/matmul.hpp"
#include "codec/cpu/kernels/operators/orth.hpp"
#include "codec/cpu/kernels/operators/runs.hpp"
#include "codec/cpu/kernels/operators/scatter.hpp"
#include "codec/cpu/kernels/operators/stable_sort.hpp"
#include "codec/cpu/kernels/operators/topk.hpp"
#include "codec/cpu/kernels/philox.hpp"
#include "codec/cpu/kernels/units.hpp"

namespace casync::codec::CASYNC_KERNEL_ISA {{
namespace {{

{"".join(text for text, _ in found)}}}  // namespace

extern const UnitKernels {array}[];
const UnitKernels {array}[]{{
{table}}};

}}  // namespace casync::codec::CASYNC_KERNEL_ISA
"""


def _choice(codec: typed.Codec, choice: Choice, space: str) -> tuple[str, str]:
    """The functions of one choice in a namespace, and the table's entry for it."""
    lowered = lower(codec, choice)
    quantiser = is_quantiser(codec, lowered)
    parts = [functions(codec, choice, lowered.rounds)]
    parts.append(emit_quantiser(codec, lowered) if quantiser else emit_units(codec, lowered))
    entries = ["encode", "merge"] if quantiser else ["encode_unit", "decode_unit", "scratch_bytes"]
    if codec.init is not None:
        parts.append(emit_init(codec, lowered))
        entries += ["propose", "propose_scratch", "agree"]
    entries += ["fits", "applies", "unit", "bound", "elements", "start"]
    fields = ", ".join(f".{entry} = {space}::{_FUNCTIONS.get(entry, entry)}" for entry in entries)
    fields += ", .sparse = true" * lowered.decode.sparse
    body = "\n".join(parts)
    return f"namespace {space} {{\n\n{body}\n}}  // namespace {space}\n\n", f"    {{{fields}}}"


_FUNCTIONS = {"elements": "elements_of"}

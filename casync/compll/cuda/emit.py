"""C++ for CUDA: one file per codec, with a table of launchers for each choice of widths.

What it looks like: `casync compll show FILE --target cuda`. Nothing in the runtime calls it yet.
"""

from __future__ import annotations

from casync.compll import typed
from casync.compll.cpu.quantiser import is_quantiser
from casync.compll.cuda.units import emit_units
from casync.compll.ir.choices import Choice, choices_of
from casync.compll.ir.lower import lower
from casync.errors import NotAvailableError

__all__ = ["NVCC_FLAGS", "emit", "launchers_name"]

NVCC_FLAGS = ("-std=c++20", "--fmad=false")  # a multiplication and an addition are rounded each, as on the CPU

_HEADERS = (
    "launchers.hpp", "kernels/philox.hpp",
    *(f"kernels/operators/{name}.hpp" for name in (
        "elementary", "hadamard", "matmul", "orth", "rounding", "runs", "select", "stable_sort", "topk")),
)  # fmt: skip


def launchers_name(codec: str) -> str:
    """The array of UnitLaunchers that the file of `codec` defines, one for each choice of widths."""
    return f"casync_cuda_{codec}"


def emit(codec: typed.Codec, name: str) -> str:
    """The CUDA C++ file. Raises `NotAvailableError` for what no code can be generated for yet."""
    choices = choices_of(codec)
    names = [f"{name}_unit" + "".join(f"_{bits}" for bits in choice.widths.values()) for choice in choices]
    structs = "\n".join(_struct(codec, choice, struct) for choice, struct in zip(choices, names, strict=True))
    entries = "".join(f"    {{{_entries(codec, struct)}}},\n" for struct in names)
    includes = "".join(f'#include "codec/cuda/{header}"\n' for header in sorted(_HEADERS))
    array = launchers_name(name)
    return f"""// Generated from {name}.cll by casync compll. To be compiled with {" ".join(NVCC_FLAGS)}.
{includes}
namespace casync::codec::cuda {{
namespace {{

{structs}
}}  // namespace

extern "C" const UnitLaunchers {array}[];
const UnitLaunchers {array}[]{{
{entries}}};

}}  // namespace casync::codec::cuda
"""


def _struct(codec: typed.Codec, choice: Choice, name: str) -> str:
    lowered = lower(codec, choice)
    members = f"using UnitTeam = {_team(codec, is_quantiser(codec, lowered))};\n{emit_units(codec, lowered)}"
    body = "".join(f"  {line}\n" if line else "\n" for line in members.splitlines())
    return f"struct {name} {{\n{body}}};\n"


def _team(codec: typed.Codec, short: bool) -> str:
    """How many threads work on a unit."""
    if codec.properties.unit is None and codec.properties.unit_rows is None:
        return "GridTeam"
    if codec.properties.unit_rows is not None and not short:
        raise NotAvailableError(f"{codec.path}: no code can be generated for units of rows but of quantisers yet")
    return f"BlockTeam<{64 if short else 512}>"


def _entries(codec: typed.Codec, struct: str) -> str:
    entries = {"scratch_bytes": f"scratch_bytes<{struct}>", "encode": f"encode<{struct}>",
               "decode": f"decode<{struct}>", "gather": "gather", "locate": f"locate<{struct}>"}  # fmt: skip
    if codec.init is not None:
        entries |= {"propose": f"propose<{struct}>", "agree": f"agree<{struct}>"}
    return ", ".join(f".{entry} = {function}" for entry, function in entries.items())

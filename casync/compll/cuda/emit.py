"""C++ for CUDA: a file for each codec that a device runs, and one with what the host must know to launch it.

What the first looks like: `casync compll show FILE --target cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence

from casync.compll import typed
from casync.compll.cpu.quantiser import is_quantiser
from casync.compll.cuda.units import UnitCode, emit_units
from casync.compll.ir.choices import choices_of
from casync.compll.ir.lower import Lowered, lower
from casync.errors import NotAvailableError

__all__ = ["CUDA_FLAGS", "emit", "emit_table", "table_name"]

CUDA_FLAGS = ("-std=c++20", "--fmad=false")  # a multiplication and an addition are rounded each, as on the CPU

_OF_SINGLE_VALUES = ("operators/elementary", "operators/rounding", "philox")  # what sizes may follow from
_HEADERS = (
    "batch", "team", *_OF_SINGLE_VALUES,
    *(
        f"operators/{name}"
        for name in ("hadamard", "matmul", "orth", "runs", "scatter", "select", "stable_sort", "topk")
    ),
)  # fmt: skip


def table_name(codec: str) -> str:
    """The array of DeviceKernels that the host's file of `codec` defines, one for each choice of widths."""
    return f"casync_cuda_{codec}"


def emit(codec: typed.Codec, name: str) -> str:
    """The device code: a kernel for each choice and entry. Raises `NotAvailableError` for what no code can be generated
    for yet.
    """
    units = _units(codec, name)
    structs = "\n".join(_struct(unit.name, unit.code.programs) for unit in units)
    kernels = "\n".join("\n".join(kernel.definition for kernel in unit.kernels) for unit in units)
    return f"""// Generated from {name}.cll by casync compll. To be compiled with {" ".join(CUDA_FLAGS)}.
{_includes(_HEADERS)}
namespace casync::codec::cuda {{
namespace {{

{structs}
}}  // namespace

{kernels}

}}  // namespace casync::codec::cuda
"""


def emit_table(codec: typed.Codec, name: str) -> str:
    """The host's file: plain C++, for any compiler. Raises as `emit` does."""
    units = _units(codec, name)
    structs = "\n".join(_struct(unit.name, unit.code.sizes) for unit in units)
    entries = "".join(f"    {{\n{_entries(unit)}    }},\n" for unit in units)
    array = table_name(name)
    return f"""// Generated from {name}.cll by casync compll.
#include "codec/cuda/device_kernels.hpp"
{_includes(_OF_SINGLE_VALUES)}
namespace casync::codec::cuda {{
namespace {{

{structs}
}}  // namespace

extern "C" const DeviceKernels {array}[];
const DeviceKernels {array}[]{{
{entries}}};

}}  // namespace casync::codec::cuda
"""


class _Kernel:
    """A kernel's definition in the device code, and its entry in the host's table. `grid` is a name of C++'s `Grid`."""

    def __init__(self, unit: str, entry: str, arguments: str, program: str, threads: int, grid: str) -> None:
        team = f"{'WideTeam' if grid == 'wide' else 'BlockTeam'}<{threads}>"
        self.definition = f"CASYNC_KERNEL({unit}_{entry}, {team}, {arguments}, {program})"
        self.entry = f'.{entry} = {{"{unit}_{entry}", {threads}, Grid::{grid}, sizeof(Many<{arguments}>)}}'


class _Unit:
    """One choice of widths."""

    def __init__(self, codec: typed.Codec, lowered: Lowered, name: str) -> None:
        self.name = name
        self.code: UnitCode = emit_units(codec, lowered)
        team = _team(codec, is_quantiser(codec, lowered))
        self.kernels = [
            _Kernel(name, "encode", "EncodeBatch", f"encode_unit<{name}>", *team),
            _Kernel(name, "decode", "DecodeBatch", f"decode_unit<{name}>", *team),
            _Kernel(name, "place", "GatherBatch", "place_units", 512, "teams"),
            _Kernel(name, "move", "GatherBatch", "move_unit", *team),
            _Kernel(name, "locate", "LocateBatch", f"locate_units<{name}>", 32, "teams"),
        ]
        if codec.init is not None:
            self.kernels += [
                _Kernel(name, "propose", "ProposeBatch", f"propose_unit<{name}>", *_WHOLE_GRADIENT),
                _Kernel(name, "agree", "AgreeBatch", f"agree_on<{name}>", 32, "teams"),
            ]


_WHOLE_GRADIENT = (256, "wide")


def _units(codec: typed.Codec, name: str) -> list[_Unit]:
    return [
        _Unit(codec, lower(codec, choice), f"{name}_unit" + "".join(f"_{bits}" for bits in choice.widths.values()))
        for choice in choices_of(codec)
    ]


def _team(codec: typed.Codec, short: bool) -> tuple[int, str]:
    """The threads of a block, and the grid, of those that work on units."""
    if codec.properties.unit is None and codec.properties.unit_rows is None:
        return _WHOLE_GRADIENT
    if codec.properties.unit_rows is not None and not short:
        raise NotAvailableError(f"{codec.path}: no code can be generated for units of rows but of quantisers yet")
    return (64, "teams") if short else (512, "wide")


def _includes(headers: Sequence[str]) -> str:
    return "".join(f'#include "codec/cuda/kernels/{header}.hpp"\n' for header in sorted(headers))


def _struct(name: str, members: str) -> str:
    body = "".join(f"  {line}\n" if line else "\n" for line in members.splitlines())
    return f"struct {name} {{\n{body}}};\n"


def _entries(unit: _Unit) -> str:
    scratch = (f".scratch_bytes = scratch_bytes<{unit.name}>", f".scratch_each = scratch_each<{unit.name}>")
    return "".join(f"        {entry},\n" for entry in (*(kernel.entry for kernel in unit.kernels), *scratch))

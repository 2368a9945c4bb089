"""Generated C++ of quantisers, compiled and run, against the interpreter of the typed tree (conftest.py), which knows
nothing of passes and lanes.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync import cli
from casync.compll.check import check_program
from casync.compll.cpu.emit import emit, kernels_name
from casync.compll.cpu.library import ISAS
from casync.compll.ir.choices import Choice, choices_of
from casync.compll.ir.lower import lower
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.plugin import ISA_FLAGS
from casync.errors import NotAvailableError
from support import processor

ROOT = Path(__file__).parents[3]
OWN = ROOT / "tests" / "compll" / "quantisers"
FILES = {name: library_files()[name] for name in ("onebit", "terngrad")}
FILES |= {name: OWN / f"{name}.cll" for name in ("absmax", "mean_sign")}
FILES["four_levels"] = ROOT / "examples" / "02_own_codec" / "four_levels.cll"
SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 31, 127, 128, 129, 300, 500, 1023, 1024, 1025, 2500, 4096]
F = np.float32
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def checked(name: str) -> Any:
    return check_program(parse(FILES[name].read_text(encoding="utf-8"), f"{name}.cll"))


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    if not processor.runs(request.param):
        pytest.skip(f"this processor has no {request.param}")
    return str(request.param)


@pytest.fixture(scope="module", params=sorted(FILES))
def built(request: pytest.FixtureRequest, isa: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = request.param
    folder = tmp_path_factory.mktemp(f"{name}-{isa}")
    (folder / f"{name}.cc").write_text(emit(checked(name), name), encoding="utf-8")
    core = ROOT / "casync_core"
    command = ["g++", "-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
               "-Wno-uninitialized", "-Wno-maybe-uninitialized", f"-DCASYNC_KERNEL_ISA={isa}",
               f"-DHARNESS_KERNELS={kernels_name(name)}", f"-I{core}/src", f"-I{core}/include", *ISA_FLAGS[isa],
               str(folder / f"{name}.cc"), str(OWN / "harness.cc"), "-o", str(folder / "run")]  # fmt: skip
    subprocess.run(command, check=True)
    return name, folder / "run"


def units() -> list[np.ndarray]:
    random = np.random.default_rng(7)
    found = []
    for n in SIZES:
        normal = (random.standard_normal(n) * 0.01).astype(F)
        found += [normal, normal**3]
    odd = np.array([0.0, -0.0, 1e-42, -1e-42, 1e-30, 3.0, -3.0, 0.5], F)
    return [*found, np.zeros(40, F), np.full(33, -2.5, F), np.resize(odd, 1100), np.resize(odd * F(1e-38), 77)]


def code_and_header(name: str, choice: Choice) -> tuple[int, int]:
    """Bits of a code, and bytes of what precedes the codes."""
    *scalars, codes = lower(checked(name), choice).rounds[0].payload
    return int(codes.stored[1:]), 4 * len(scalars)


def run(program: Path, choice: int, cases: list[tuple[np.ndarray, np.ndarray, float, int]], *flags: int) -> list[Any]:
    """(not finite, payload, residual, decoded) of each case."""
    sent = b"".join(
        struct.pack("<ifq", len(x), mid, size) + x.tobytes() + residual.tobytes() for x, residual, mid, size in cases
    )
    command = [str(program), str(choice), *map(str, flags)]
    said = subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True, timeout=50).stdout
    results, at = [], 0
    for x, _, _, size in cases:
        flag, payload, rest = said[at], said[at + 1 : at + 1 + size], said[at + 1 + size :]
        residual, decoded = (np.frombuffer(rest, F, len(x), offset) for offset in (0, 4 * len(x)))
        results.append((bool(flag), payload, residual, decoded))
        at += 1 + size + 8 * len(x)
    assert at == len(said)
    return results


@cache
def encoded_by_the_text(name: str, machine: Any) -> list[list[tuple[np.ndarray, bytes, bytes]]]:
    """Per choice of parameters, each unit with its payload and what that decodes to. Of all ISAs and readings."""
    found = []
    for chosen in choices_of(checked(name)):
        cases = []
        for x in units():
            rank = machine(FILES[name], (1, len(x)), name_hash=0x0123456789ABCDEF, step=5000, **chosen.parameters)
            payload = rank.encode(x)
            cases.append((x, payload, rank.decode(payload).tobytes()))
        found.append(cases)
    return found


@pytest.mark.parametrize("reading", [0, 1, 2])
def test_bytes_and_values_are_those_of_the_text(built: tuple[str, Path], machine: Any, reading: int) -> None:
    name, program = built
    for choice, expected in enumerate(encoded_by_the_text(name, machine)):
        cases = [(x, np.zeros(len(x), F), 1.0, len(payload)) for x, payload, _ in expected]
        for (x, payload, decoded), got in zip(expected, run(program, choice, cases, 0, reading), strict=True):
            assert not got[0], len(x)
            assert got[1].hex() == payload.hex(), f"{name}, choice {choice}: {len(x)} elements"
            assert got[3].tobytes() == decoded


@pytest.mark.parametrize("mid", [1.0, 0.25])
def test_the_residual_is_what_the_payload_lost(built: tuple[str, Path], mid: float) -> None:
    """x = accumulated + residual, y = x * mid, residual = x - D(payload) / mid, in float32 (codec.hpp)."""
    name, program = built
    if checked(name).properties.feedback != "wrapper":
        pytest.skip("keeps no residual")
    random = np.random.default_rng(3)
    bits, header = code_and_header(name, Choice())
    cases = [
        (x, (random.standard_normal(len(x)) * 0.01).astype(F), mid, header + (len(x) * bits + 7) // 8) for x in units()
    ]
    for (x, before, _, _), (_, _, after, decoded) in zip(cases, run(program, 0, cases, 1, 0), strict=True):
        if name == "onebit":
            assert after.tobytes() == ((x + before) - decoded / F(mid)).tobytes()
        np.testing.assert_allclose(after, (x + before) - decoded / F(mid), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_decodes_to_nan_and_leaves_the_residual(built: tuple[str, Path], bad: float) -> None:
    name, program = built
    feedback = int(checked(name).properties.feedback == "wrapper")
    for choice, chosen in enumerate(choices_of(checked(name))):
        bits, header = code_and_header(name, chosen)
        cases = []
        for n, place in ((1, 0), (17, 16), (1000, 500), (1025, 1024), (4096, 4095)):
            x = np.ones(n, F)
            x[place] = bad
            cases.append((x, np.full(n, 0.5, F), 1.0, header + (n * bits + 7) // 8))
        for flag, _, residual, decoded in run(program, choice, cases, feedback, 0):
            assert flag and np.isnan(decoded).all() and (residual == 0.5).all()


def test_show_prints_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "show", str(FILES["onebit"])]) == 0
    assert "const UnitKernels kOnebit[]{" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "passes"), [("onebit", 1), ("terngrad", 2), ("absmax", 2), ("mean_sign", 3), ("four_levels", 2)]
)
def test_as_few_passes_as_reductions_depend_on_each_other(name: str, passes: int) -> None:
    text = emit(checked(name), name)
    assert text.count("const auto step") == passes * len(choices_of(checked(name)))


@pytest.mark.parametrize("unit", ["rows(256, 4096)", "100"])
def test_random_numbers_need_units_that_begin_where_the_generator_does(unit: str) -> None:
    text = FILES["terngrad"].read_text(encoding="utf-8").replace("unit = 4096", f"unit = {unit}")
    with pytest.raises(NotAvailableError, match="random numbers in units that are no multiple of 128"):
        emit(check_program(parse(text, "odd.cll")), "odd")


def test_the_size_in_decode_is_refused() -> None:
    text = FILES["absmax"].read_text(encoding="utf-8")
    before, after = "scale * (code - 7) / 7", "scale * (code - 7) / size"
    assert before in text
    with pytest.raises(NotAvailableError, match=r"`gradient.size` in decode"):
        emit(check_program(parse(text.replace(before, after), "changed.cll")), "changed")


def test_a_sum_over_what_is_drawn_is_refused() -> None:
    text = FILES["terngrad"].read_text(encoding="utf-8")
    text = text.replace("concat(min, gap, Q)", "concat(min, gap + 0 * reduce(map(Q, uintToFloat), add), Q)")
    with pytest.raises(NotAvailableError, match="a float sum and random numbers in one pass"):
        emit(check_program(parse(text, "drawn.cll")), "drawn")


def test_the_text_is_the_same_whatever_the_order_of_a_set() -> None:
    program = """
        import sys
        from pathlib import Path
        from casync.compll.check import check_program
        from casync.compll.cpu.emit import emit
        from casync.compll.parser import parse
        print(emit(check_program(parse(Path(sys.argv[1]).read_text(encoding="utf-8"), "states.cll")), "states"))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(ROOT / "tests" / "compll" / "units" / "states.cll")]
    texts = {
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in "0123"
    }
    assert len(texts) == 1

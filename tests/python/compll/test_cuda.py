"""Code generated for CUDA against the code for the CPU: payloads, residuals, states and decoded values, bit by bit.

Everywhere its teams of threads run in lockstep on the CPU (tests/compll/cuda). With nvcc all of it is compiled
once more; with a device the same comparison runs on it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings

from casync import cli
from casync.compll.check import check_program
from casync.compll.cpu.emit import emit as emit_cpu
from casync.compll.cpu.emit import kernels_name
from casync.compll.cuda.emit import CUDA_FLAGS, emit, emit_table, table_name
from casync.compll.cuda.nvrtc import cubin_of
from casync.compll.ir.choices import choices_of
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.errors import NotAvailableError
from support.files import ROOT, load

OWN = ROOT / "tests" / "compll" / "cuda"
CORE = ROOT / "casync_core"
compll_programs = load("tests/fuzz/compll_programs.py")

WRITTEN = [path for folder in ("quantisers", "units") for path in (ROOT / "tests" / "compll" / folder).glob("*.cll")]
FILES = library_files() | {path.stem: path for path in WRITTEN}
INCLUDES = (f"-I{CORE}/src", f"-I{CORE}/include", f"-I{OWN}")
F = np.float32
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.timeout(300)]


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


NVCC = find_nvcc()
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH, in CUDA_HOME or /usr/local/cuda")


def missing_device() -> str | None:
    missing = load("tools/cuda_device.py").missing()
    return str(missing) if missing else None


def checked(name: str) -> Any:
    return check_program(parse(FILES[name].read_text(encoding="utf-8"), f"{name}.cll"))


# --- what is compared


def same_size(unit: int) -> Callable[[int, int], list[int]]:
    return lambda rows, cols: [*range(0, rows * cols, unit), rows * cols]


def of_rows(shortest: int, longest: int) -> Callable[[int, int], list[int]]:
    def begins(rows: int, cols: int) -> list[int]:
        if cols > longest:
            pieces = -(-cols // longest)
            unit, period = -(-cols // pieces), cols
        else:
            unit = period = cols * (1 if cols >= shortest else -(-shortest // cols))
        found = [0]
        while found[-1] < rows * cols:
            begin = found[-1]
            found.append(min(begin + unit, begin - begin % period + period, rows * cols))
        return found

    return begins


@dataclass(frozen=True)
class Setting:
    """One codec with parameters. `choice` of widths; `units` gives where units of a shape begin."""

    codec: str
    units: Callable[[int, int], list[int]]
    parameters: tuple[float, ...] = ()
    choice: int = 0
    rounds: int = 1
    received: str = "float"
    """What the last round but one gives."""
    sizes: tuple[int, ...] = (1, 15, 1000, 1025, 4096, 5000)

    def __str__(self) -> str:
        return f"{self.codec}({', '.join(map(str, self.parameters))})"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        if self.rounds > 1:
            return [(100, 70), (31, 90), (1300, 40), (40, 1300)]
        rows = [(10, 25), (40, 125), (3, 4100)] if self.codec in ("onebit", "mean_sign", "efsignsgd") else []
        return [*((1, size) for size in self.sizes), *rows]

    @property
    def words(self) -> list[str]:
        """The parameters as C++ has them in its union."""
        return [str(int(np.array(value, F if isinstance(value, float) else np.int32).view(np.int32)))
                for value in self.parameters]  # fmt: skip


RECEIVED = {"float": (0x7F800000, 4), "bfloat16": (0x7F80, 2)}
"""Bits of what is not finite, and the bytes of an element."""

LONG = same_size(1 << 20)
ALL = (1, 15, 1000, 1025, 4096, 5000, (1 << 20) + 77)
SETTINGS = [
    Setting("onebit", of_rows(256, 4096)),
    Setting("mean_sign", of_rows(64, 300)),
    Setting("absmax", same_size(512)),
    Setting("rotated_sign", same_size(4096)),
    *(Setting("terngrad", same_size(4096), (bits,), choice) for choice, bits in enumerate((2, 4, 8))),
    Setting("tbq", same_size(1024), (0.0,), sizes=ALL),
    Setting("tbq", same_size(1024), (0.01,)),
    Setting("graddrop", LONG, (0.99, 0.001), sizes=ALL),
    Setting("graddrop", LONG, (0.0, 0.5)),
    Setting("dgc", LONG, (0.001, 0.01, 0.0, 0), sizes=ALL),
    Setting("dgc", LONG, (0.1, 0.01, 0.5, 0)),
    Setting("dgc", LONG, (0.001, 1.0, 0.0, 2000)),
    Setting("adacomp", same_size(1048576 // 50 * 50), (50,)),
    Setting("adacomp", same_size(1048576 // 500 * 500), (500,), 1, sizes=ALL),
    Setting("adacomp", same_size(1048576 // 3000 * 3000), (3000,), 1),
    Setting("threelc", LONG, (1.0,), sizes=ALL),
    Setting("threelc", LONG, (1.9,)),
    Setting("efsignsgd", of_rows(256, 4096)),
    Setting("minmax_uint8", same_size(4096)),
    Setting("int8", same_size(256)),
    Setting("int4", same_size(128)),
    Setting("fp8", same_size(256)),
    Setting("ternary", same_size(4096), (2.5,)),
    Setting("sparseloco", same_size(4096), (64, 6.0)),
    Setting("sparseloco", same_size(4096), (700, 2.5)),
    Setting("lossless", same_size(4096)),
    *(Setting("rotated", same_size(4096), (bits,), choice) for choice, bits in enumerate((4, 8))),
    *(Setting("qsgd", same_size(512), (bits,), choice) for choice, bits in enumerate((2, 4, 8))),
    Setting("topk", LONG, (0.01,), sizes=ALL),
    Setting("topk", LONG, (0.5,)),
    Setting("powersgd", lambda rows, cols: [0, rows * cols], (4, 0), rounds=2),
    Setting("powersgd", lambda rows, cols: [0, rows * cols], (2, 0), rounds=2),
    Setting("randomk", lambda rows, cols: [0, rows * cols], (0.01,)),
    Setting("randomk", lambda rows, cols: [0, rows * cols], (0.3,)),
    Setting("topkc", lambda rows, cols: [0, rows * cols], (2.0, 64), rounds=2, received="bfloat16"),
    Setting("topkc", lambda rows, cols: [0, rows * cols], (4.5, 17), rounds=2, received="bfloat16"),
    Setting("thc", lambda rows, cols: [0, rows * cols], (4, 4096), rounds=2),
    Setting("thc", lambda rows, cols: [0, rows * cols], (8, 64), rounds=2),
]


def as_written(name: str) -> Setting:
    """A file of one combination, with its own parameters and unit."""
    codec = checked(name)
    unit, parameters = codec.properties.unit, [(p.element.floating, p.default) for p in codec.parameters]
    units = LONG if unit is None else same_size(unit.value)
    values = tuple(float(value) if floating else int(value) for floating, value in parameters)
    return Setting(name, units, values, sizes=(1, 1000, 1025, 5000))


FIXED = "CASYNC_TEST_PROGRAMS" not in os.environ  # what CI says depends on the change alone
MADE_UP = int(os.environ.get("CASYNC_TEST_PROGRAMS", "5"))
COMBINATIONS = [as_written(path.stem) for path in sorted((ROOT / "tests" / "compll" / "units").glob("*.cll"))]


def gradients(n: int) -> list[np.ndarray]:
    """Ordinary values; many zeros of both signs; subnormal numbers; a NaN; an infinity."""
    random = np.random.default_rng(n)
    normal = (random.standard_normal(n) ** 3 * 0.01).astype(F)
    if n > 1 << 20:
        return [normal]
    zeros, tiny, nan, infinite = normal.copy(), normal * F(1e-38), normal.copy(), normal.copy()
    zeros[::3] = 0
    zeros[1::7] = -0.0
    nan[n // 2] = np.nan
    infinite[-1] = np.inf
    return [normal, zeros, tiny, nan, infinite]


def cases(setting: Setting) -> tuple[int, bytes]:
    """How many there are, and what compare.cc reads."""
    codec = checked(setting.codec)
    found = []
    for rows, cols in setting.shapes:
        begin = setting.units(rows, cols)
        for kind, gradient in enumerate(gradients(rows * cols)):
            for feedback in {0, int(codec.properties.feedback == "wrapper")}:
                steps, mid = (3 if kind == 0 else 2), (1.0, 0.5, 3.0)[kind % 3]
                sizes = (rows * cols, len(begin) - 1, rows, cols, 5000, steps, setting.rounds, feedback)
                states = (len(codec.states), states_per_element(codec))
                head = struct.pack("<qqiiiiiifiiii4x", *sizes, mid, *states, *RECEIVED[setting.received])
                found.append(head + np.array(begin, np.int64).tobytes() + gradient.tobytes())
    return len(found), b"".join(found)


def states_per_element(codec: Any) -> int:
    lengths = [getattr(state.type, "length", None) for state in codec.states]
    return sum(1 << i for i, length in enumerate(lengths) if length is not None and length.kind == "unit")


def expect_no_difference(program: Path, setting: Setting, order: Sequence[str] = ("0",)) -> None:
    count, given = cases(setting)
    for one in order:
        command = [str(program), str(setting.choice), one, *setting.words]
        done = subprocess.run(command, input=given, capture_output=True, timeout=600)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode() == f"{count} cases\n"


# --- compiled in three ways

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized")


STEM = "compared"  # of every codec's code, so that compare.cc is compiled once
COMPARE = (f"-DCPU_KERNELS={kernels_name(STEM)}", f"-DCUDA_KERNELS={table_name(STEM)}", str(OWN / "compare.cc"))
PLAIN = ("g++", "-std=c++20", "-O1", "-ffp-contract=off", *WARNINGS)
WATCHED = (*PLAIN, "-fsanitize=address", f"-I{OWN}/lockstep", *INCLUDES)


def write_cpu(name: str, folder: Path) -> str:
    """The code for the CPU, and the host's table of the code for CUDA."""
    text = emit_cpu(checked(name), STEM) + emit_table(checked(name), STEM)
    (folder / f"{name}.cc").write_text(text, encoding="utf-8")
    return str(folder / f"{name}.cc")


def write_cuda(name: str, folder: Path) -> str:
    (folder / f"{name}.cu").write_text(emit(checked(name), STEM), encoding="utf-8")
    return str(folder / f"{name}.cu")


def compile_cpu(source: str) -> str:
    """The object file of the CPU's code."""
    command = [*PLAIN, *INCLUDES, "-DCASYNC_KERNEL_ISA=baseline", "-c", source, "-o", f"{source}.o"]
    subprocess.run(command, check=True)
    return f"{source}.o"


class Lockstep:
    """Teams in lockstep: team.hpp of tests/compll/cuda comes before the core's. Every access to memory is watched. Two
    compilers work ahead while tests run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(2)
        self._built: dict[str, Future[Path]] = {}
        compare = [*WATCHED, "-c", *COMPARE, "-o", str(folder / "compare.o")]
        self._compare = self._pool.submit(subprocess.run, compare, check=True)

    def start(self, name: str) -> None:
        """Raises NotAvailableError."""
        if name not in self._built:
            sources = write_cuda(name, self._folder), write_cpu(name, self._folder)
            self._built[name] = self._pool.submit(self._build, *sources)

    def built(self, name: str) -> Path:
        self.start(name)
        return self._built[name].result()

    def _build(self, cuda: str, cpu: str) -> Path:
        subprocess.run([*WATCHED, "-c", "-x", "c++", cuda, "-o", f"{cuda}.o"], check=True)
        self._compare.result()
        objects = [f"{cuda}.o", str(self._folder / "compare.o"), compile_cpu(cpu)]
        subprocess.run([*WATCHED, "-rdynamic", *objects, "-o", f"{cuda}.run"], check=True)
        return Path(f"{cuda}.run")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def lockstep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lockstep]:
    shop = Lockstep(tmp_path_factory.mktemp("lockstep"))
    for item in request.session.items:
        if "lockstep" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec"):
            shop.start(item.callspec.params["setting"].codec)
    yield shop
    shop.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made_up")


def compile_for_device(sources: Sequence[str], program: Path) -> Path:
    """A comparison with what the driver runs. nvcc knows where CUDA's headers are."""
    assert NVCC is not None
    command = [NVCC, "-std=c++20", "-O2", "-Werror", "all-warnings", *INCLUDES, "-DON_DEVICE", *sources, "-o",
               str(program), "-ldl"]  # fmt: skip
    subprocess.run(command, check=True)
    return program


def compare_on_device(name: str, folder: Path) -> Path:
    return compile_for_device([*COMPARE, compile_cpu(write_cpu(name, folder))], folder / "compare")


def architecture_of_device() -> str:
    driver, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    parts = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        assert driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
        parts.append(value.value)
    return "sm_{}{}".format(*parts)


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """Builds a comparison, and its code for the device."""
    built: dict[str, tuple[Path, str]] = {}

    def build(name: str) -> tuple[Path, str]:
        if name not in built:
            folder = tmp_path_factory.mktemp(name)
            code = cubin_of(emit(checked(name), STEM), architecture_of_device(), {"CASYNC_CACHE_DIR": str(folder)})
            (folder / "cubin").write_bytes(code)
            built[name] = compare_on_device(name, folder), str(folder / "cubin")
        return built[name]

    return build


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_teams_in_lockstep_give_the_bytes_of_the_cpu(setting: Setting, lockstep: Lockstep) -> None:
    takes_long = max(setting.sizes) > 1 << 20 or setting.parameters == (4, 0)  # powersgd, of a higher rank than below
    expect_no_difference(lockstep.built(setting.codec), setting, ("0",) if takes_long else ("0", "1"))


@pytest.mark.parametrize("setting", COMBINATIONS, ids=str)
def test_each_combination_in_lockstep_gives_the_bytes_of_the_cpu(setting: Setting, lockstep: Lockstep) -> None:
    expect_no_difference(lockstep.built(setting.codec), setting)


@pytest.mark.timeout(1200)
@settings(max_examples=MADE_UP, derandomize=FIXED, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=compll_programs.programs())
def test_programs_made_up_at_random_in_lockstep(text: str, lockstep: Lockstep, folder: Path) -> None:
    name = f"text_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    FILES[name] = folder / f"{name}.cll"
    FILES[name].write_text(text, encoding="utf-8")
    try:
        lockstep.start(name)
    except NotAvailableError:
        reject()
    # A payload of integers alone cannot say that it is not finite.
    assume(any(item.counted or item.type.element.floating for item in checked(name).payload))
    expect_no_difference(lockstep.built(name), as_written(name))


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("setting", [*SETTINGS, *COMBINATIONS], ids=str)
def test_a_device_gives_the_bytes_of_the_cpu(setting: Setting, on_device: Callable[[str], tuple[Path, str]]) -> None:
    if why := missing_device():
        pytest.skip(why)
    program, cubin = on_device(setting.codec)
    expect_no_difference(program, setting, (cubin,))


@needs_nvcc
def test_the_comparisons_on_a_device_compile(tmp_path: Path) -> None:
    assert compare_on_device("onebit", tmp_path).exists()
    assert compile_for_device([RAW_TEST, *raw_on_cpu(tmp_path)], tmp_path / "raw_test").exists()


# --- elements of a gradient's own dtype

RAW_CODE = '#include "codec/cuda/kernels/raw.hpp"\n'
RAW_TEST = str(OWN / "raw_test.cc")


def raw_on_cpu(folder: Path) -> list[str]:
    """The object files of the CPU's kernels."""
    copies = [shutil.copy(CORE / "src" / "codec" / "cpu" / "kernels" / f"{name}.cc", folder)
              for name in ("raw", "table")]  # fmt: skip
    return [compile_cpu(str(copy)) for copy in copies]


def expect_done(program: Path, order: str) -> None:
    done = subprocess.run([str(program), order], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_elements_in_lockstep_are_rounded_as_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "raw.cu").write_text(RAW_CODE, encoding="utf-8")
    objects = [str(tmp_path / "raw.cu.o"), str(tmp_path / "raw_test.o")]
    for source, made in zip((str(tmp_path / "raw.cu"), RAW_TEST), objects, strict=True):
        subprocess.run([*WATCHED, "-c", "-x", "c++", source, "-o", made], check=True)
    program = tmp_path / "raw_test"
    subprocess.run([*WATCHED, "-rdynamic", *objects, *raw_on_cpu(tmp_path), "-o", str(program)], check=True)
    for order in ("0", "1"):
        expect_done(program, order)


@pytest.mark.gpu
@needs_nvcc
def test_elements_on_a_device_are_rounded_as_on_the_cpu(tmp_path: Path) -> None:
    if why := missing_device():
        pytest.skip(why)
    code = cubin_of(RAW_CODE, architecture_of_device(), {"CASYNC_CACHE_DIR": str(tmp_path)})
    (tmp_path / "cubin").write_bytes(code)
    program = compile_for_device([RAW_TEST, *raw_on_cpu(tmp_path)], tmp_path / "raw_test")
    expect_done(program, str(tmp_path / "cubin"))


@needs_nvcc
def test_all_of_the_library_compiles_without_a_warning(tmp_path: Path) -> None:
    """For one generation of devices; test_nvrtc.py has others."""

    def compiled(name: str) -> str:
        command = [str(NVCC), *CUDA_FLAGS, "-O2", "-arch=sm_90", "-Werror", "all-warnings", *INCLUDES, "-c",
                   write_cuda(name, tmp_path), "-o", str(tmp_path / f"{name}.o")]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True).stderr

    with ThreadPoolExecutor(2) as pool:
        names = list(library_files())
        assert dict(zip(names, pool.map(compiled, names), strict=True)) == dict.fromkeys(names, "")


@needs_nvcc
def test_each_operation_is_rounded_by_itself_as_ieee_says(tmp_path: Path) -> None:
    command = [str(NVCC), *CUDA_FLAGS, "-O2", "-arch=sm_90", *INCLUDES, "-ptx", write_cuda("powersgd", tmp_path), "-o",
               str(tmp_path / "powersgd.ptx")]  # fmt: skip
    subprocess.run(command, check=True)
    operations = set(re.findall(r"\b(\w+)\.([\w.]*)f32\b", (tmp_path / "powersgd.ptx").read_text(encoding="utf-8")))
    arithmetic = {"add", "sub", "mul", "div", "sqrt", "fma", "mad", "rcp"}
    assert {found for found in operations if found[0] in arithmetic} == {
        (name, "rn.") for name in ("add", "sub", "mul", "div", "sqrt")
    }


def test_each_choice_of_widths_has_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compll", "show", str(FILES["terngrad"]), "--target", "cuda"]) == 0
    shown = capsys.readouterr().out
    assert shown == emit(checked("terngrad"), "terngrad")
    names = re.findall(r"CASYNC_KERNEL\((\w+),", shown)
    in_table = re.findall(r'\{"(\w+)",', emit_table(checked("terngrad"), "terngrad"))
    assert names == in_table and len(names) == len(set(names)) == 5 * len(choices_of(checked("terngrad"))) == 15


def test_teams_of_a_device_scan_and_wait_as_they_say(tmp_path: Path) -> None:
    program = tmp_path / "team_test"
    command = [*PLAIN, *INCLUDES, "-pthread", str(OWN / "team_test.cc"), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr

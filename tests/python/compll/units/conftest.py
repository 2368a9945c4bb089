"""Generated units as C functions, beside tests/compll/units/harness.cc, called with memory of the sizes that they ask
for. The library is compiled once per instruction set; files of one combination for the least and the widest one, whose
operators the C++ tests hold to each other at all of them.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import math
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from casync.compll import typed
from casync.compll.check import check_program
from casync.compll.cpu.emit import emit, kernels_name
from casync.compll.cpu.library import ISAS
from casync.compll.cpu.quantiser import is_quantiser
from casync.compll.ir.choices import choices_of
from casync.compll.ir.lower import lower
from casync.compll.ir.program import loses
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.plugin import ISA_FLAGS
from support import processor

F = np.float32
ROOT = Path(__file__).parents[4]
OWN = ROOT / "tests" / "compll" / "units"
FILES = library_files() | {path.stem: path for path in sorted(OWN.glob("*.cll"))}
NAME = 0x0123456789ABCDEF
SHARED = ("-shared", "-fPIC", "-O2")
GUARD = 64  # bytes behind a payload, which must stay as they are


@functools.cache
def checked(name: str) -> typed.Codec:
    return check_program(parse(FILES[name].read_text(encoding="utf-8"), f"{name}.cll"))


@functools.cache
def coded(name: str) -> list[bool]:
    """Of each choice of widths whether it is a quantiser."""
    return [is_quantiser(checked(name), lower(checked(name), choice)) for choice in choices_of(checked(name))]


@functools.cache
def leaves_residual(name: str) -> list[bool]:
    """Of each choice of widths whether encoding itself takes what is sent off the residual."""
    return [loses(lower(checked(name), choice).rounds[0]) for choice in choices_of(checked(name))]


# --- compiling


class Workshop:
    """Two compilers at a time, which work ahead while tests run. Processes that share the folder share its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(2)
        self._started: dict[tuple[str, str], Future[Path]] = {}
        self.isas = [isa for isa in ISAS if processor.runs(isa)]

    def add(self, text: str) -> str:
        """A file of this text; the name that it is known by here."""
        name = f"text_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        FILES[name] = self._folder / f"{name}.cll"
        self._write(FILES[name], text)
        return name

    def start(self, name: str) -> None:
        source = self._source(name)
        for isa in self.isas_of(name):
            if (name, isa) not in self._started:
                self._started[name, isa] = self._pool.submit(self._link, source, isa, "harness.cc", *SHARED)

    def built(self, name: str) -> dict[str, ctypes.CDLL]:
        self.start(name)
        return {isa: ctypes.CDLL(str(self._wanted(name, isa))) for isa in self.isas_of(name)}

    def isas_of(self, name: str) -> list[str]:
        return self.isas if name in library_files() else list(dict.fromkeys((self.isas[0], self.isas[-1])))

    def compile(self, name: str, isa: str, harness: str, *options: str) -> Path:
        return self._link(self._source(name), isa, harness, *options)

    def _wanted(self, name: str, isa: str) -> Path:
        """What a test waits for is compiled at once, before all that still waits for its turn."""
        if self._started[name, isa].cancel():
            return self._link(self._source(name), isa, "harness.cc", *SHARED)
        return self._started[name, isa].result()

    def _source(self, name: str) -> Path:
        """Translated by the tests' own thread: Python 3.11 may fail where several build syntax trees, as lark does."""
        source = self._folder / f"{name}.cc"
        if not source.exists():
            self._write(source, emit(checked(name), name))
        return source

    def _write(self, target: Path, text: str) -> None:
        """At once, so that no other process reads half of it."""
        own = target.with_suffix(f".{os.getpid()}")
        own.write_text(text, encoding="utf-8")
        own.replace(target)

    def _link(self, source: Path, isa: str, harness: str, *options: str) -> Path:
        """A generated file and the harness, which is compiled once and calls the file's kernels by the name kUnit."""
        options = (*options, "-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
                   "-Wno-uninitialized", "-Wno-maybe-uninitialized", f"-DCASYNC_KERNEL_ISA={isa}",
                   "-DHARNESS_KERNELS=kUnit", *ISA_FLAGS[isa])  # fmt: skip
        shared = self._compile(self._folder / f"{harness}-{isa}.o", *options, "-c", str(OWN / harness))
        named = f"-D{kernels_name(source.stem)}=kUnit"
        return self._compile(self._folder / f"{source.stem}-{isa}-{harness}", *options, named, str(source), str(shared))

    def _compile(self, result: Path, *words: str) -> Path:
        core, own = ROOT / "casync_core", result.with_name(f"{result.name}.{os.getpid()}")
        command = ["g++", *words, f"-I{core}/src", f"-I{core}/include", "-o", str(own)]
        with result.with_name(f"{result.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                said = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
                assert said.returncode == 0, f"{result.name}: {said.stderr[:3000]}"
                own.replace(result)
        return result

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    # Each of xdist's processes collects all tests and would compile for all of them.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "units"
    folder.mkdir(exist_ok=True)
    shop = Workshop(folder)
    for item in request.session.items:
        if "workshop" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec"):
            shop.start(item.callspec.params["name"])
    yield shop
    shop.close()


# --- calling


class Given(ctypes.Structure):
    """As in harness.hpp."""

    _fields_ = [
        ("n", ctypes.c_int64), ("name_hash", ctypes.c_uint64), ("coordinate", ctypes.c_uint64),
        ("parameters", ctypes.c_void_p), ("state", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("choice", "rows", "cols", "step", "world", "rank", "nesterov")),
        ("lr", ctypes.c_float), ("momentum", ctypes.c_float),
    ]  # fmt: skip


def at(array: np.ndarray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


class Native:
    """One rank and one unit, as `Machine` is one, in generated code."""

    def __init__(self, library: ctypes.CDLL, name: str, shape: tuple[int, int],
                 parameters: Mapping[str, Any], first: int = 0, **facts: Any) -> None:  # fmt: skip
        self._library, codec = library, checked(name)
        for function in ("unit", "bound", "elements", "encode", "decode"):
            getattr(library, function).restype = ctypes.c_int64
        library.propose.restype = ctypes.c_float
        values = {**{parameter.name: parameter.default for parameter in codec.parameters}, **parameters}
        kinds = [F if parameter.element.floating else np.int32 for parameter in codec.parameters]
        packed = b"".join(kind(values[p.name]).tobytes() for kind, p in zip(kinds, codec.parameters, strict=True))
        self._parameters = np.frombuffer(packed or b"\0", np.uint8)
        known = {"step": 5000, "world": 1, "rank": 0, "nesterov": 0, "lr": F(0.1), "momentum": F(0.9)} | facts
        self.given = Given(n=shape[0] * shape[1], name_hash=NAME, coordinate=first, rows=shape[0], cols=shape[1],
                           parameters=self._parameters.ctypes.data, **known)  # fmt: skip
        self.given.choice = library.choice_of(ctypes.byref(self.given), len(coded(name)))
        assert self.given.choice >= 0
        self.states = [self._started(number) for number in range(len(codec.states))]
        self._places = np.array([state.ctypes.data for state in self.states] or [0], np.uint64)
        self.given.state = self._places.ctypes.data
        self.n = self.given.n
        self._coded = coded(name)[self.given.choice]
        self.loses = leaves_residual(name)[self.given.choice]

    def _started(self, number: int) -> np.ndarray:
        values = np.empty(self._library.elements(ctypes.byref(self.given), number) + 1, F)[1:]
        self._library.start(ctypes.byref(self.given), number, at(values))
        return values

    def bound(self, round_: int = 0) -> int:
        return int(self._library.bound(ctypes.byref(self.given), round_))

    @property
    def unit(self) -> int:
        return int(self._library.unit(ctypes.byref(self.given)))

    @property
    def applies(self) -> bool:
        return bool(self._library.applies(ctypes.byref(self.given)))

    def init(self, gradient: np.ndarray) -> None:
        """With itself alone to agree."""
        proposed = self._library.propose(ctypes.byref(self.given), at(gradient))
        self._library.agree(ctypes.byref(self.given), ctypes.c_float(proposed))

    def encode(self, x: np.ndarray, residual: np.ndarray | None = None, mid: float = 1.0, capacity: int | None = None,
               round_: int = 0, received: np.ndarray | None = None) -> tuple[bytes | None, bool]:  # fmt: skip
        """The payload, None if it has no room, and whether something was not finite."""
        capacity = self.bound(round_) if capacity is None else capacity
        payload = np.full(1 + capacity + GUARD, 0xEE, np.uint8)[1:]  # at an odd address, as behind another unit's
        given, values, factor, nonfinite = (
            ctypes.byref(self.given),
            (at(x), at(residual)),
            ctypes.c_float(mid),
            ctypes.c_int(),
        )
        if self._coded:
            used = capacity
            nonfinite.value = self._library.encode_codes(given, *values, factor, at(payload))
        else:
            used = self._library.encode(given, round_, *values, factor, at(received), at(payload),
                                        ctypes.c_int64(capacity), ctypes.byref(nonfinite))  # fmt: skip
        assert -1 <= used <= capacity and (payload[capacity:] == 0xEE).all()
        return (None if used < 0 else payload[:used].tobytes()), bool(nonfinite.value)

    def decode(self, payload: bytes, out: np.ndarray | None = None, into: int = 0, keep: bool = False,
               accumulated: np.ndarray | None = None, divisor: float = 1.0, round_: int = 0,
               received: np.ndarray | None = None) -> np.ndarray | None:  # fmt: skip
        """What it is, or what becomes of `out`; None if it cannot be this codec's."""
        out = np.full(self.n, 7, F) if out is None else out.copy()
        taken = np.frombuffer(b"\0" + payload, np.uint8)[1:]
        given = ctypes.byref(self.given)
        if self._coded:
            self._library.decode_codes(given, at(taken), at(out))
            return out
        used = self._library.decode(given, round_, at(taken), ctypes.c_int64(len(taken)), at(received), at(out), into,
                                    at(accumulated), ctypes.c_float(divisor), int(keep))  # fmt: skip
        assert used in (-1, len(payload))
        return None if used < 0 else out


# --- the interpreter, with the polynomials of kernels/operators/elementary.hpp


def pattern(x: Any) -> int:
    return int(F(x).view(np.int32))


def of_pattern(bits: int) -> Any:
    return np.array(bits & 0xFFFFFFFF, np.uint32).view(F)[()]


def polynomial(x: Any, *terms: str) -> Any:
    total = F(float.fromhex(terms[-1]))
    for term in reversed(terms[:-1]):
        total = F(total * x + F(float.fromhex(term)))
    return total


WHOLE = F(1.5 * 2**23)


def exp2(x: Any) -> Any:
    if math.isnan(x):
        return x
    held = max(min(F(x), F(200)), F(-200))
    total = held + WHOLE
    f, n = held - (total - WHOLE), pattern(total) - pattern(WHOLE)
    power = F(1) + f * polynomial(f, "0x1.62e43p-1", "0x1.ebfbdcp-3", "0x1.c6af7cp-5", "0x1.3b2dep-7",
                                  "0x1.5f082ep-10", "0x1.416b52p-13")  # fmt: skip
    return power * of_pattern((n >> 1) + 127 << 23) * of_pattern(n - (n >> 1) + 127 << 23)


def log2(x: Any) -> Any:
    if math.isnan(x) or x < 0:
        return F(math.nan)
    if x in (0, math.inf):
        return F(math.inf if x else -math.inf)
    subnormal = x < F(2.0**-126)
    bits = pattern(F(x) * F(2**23) if subnormal else x)
    e = bits - pattern(float.fromhex("0x1.6a09e6p-1")) >> 23
    t = of_pattern(bits - (e << 23)) - F(1)
    return F(e - 23 * bool(subnormal)) + t * polynomial(
        t, "0x1.715476p+0", "-0x1.715476p-1", "0x1.ec7208p-2", "-0x1.7156cap-2", "0x1.2739b4p-2", "-0x1.eb164p-3",
        "0x1.abb432p-3", "-0x1.8be26ap-3", "0x1.4f067p-3", "-0x1.4780ccp-4")  # fmt: skip


def cos(x: Any) -> Any:
    if not abs(x) <= 100000:
        return F(math.nan)
    total = F(x) * F(float.fromhex("0x1.45f306p-1")) + WHOLE
    n, r = total - WHOLE, F(x)
    for part in ("0x1.92p+0", "0x1.fap-12", "0x1.54p-20", "0x1.10b462p-30"):
        r = r - n * F(float.fromhex(part))
    z = r * r
    even = F(1) - z * F(0.5) + z * z * polynomial(z, "0x1.55554ap-5", "-0x1.6c0c1ap-10", "0x1.99e0ecp-16")
    odd = r + r * z * polynomial(z, "-0x1.555546p-3", "0x1.11077ap-7", "-0x1.9954a8p-13")
    quarter = pattern(total) & 3
    result = odd if quarter % 2 else even
    return -result if quarter in (1, 2) else result


@pytest.fixture(scope="session")
def unit_machine(machine: Any) -> Any:
    """The interpreter, for files by name, in the units' own first coordinate and with generated code's polynomials."""

    class Exact(machine):
        operations = machine.operations | {"exp2": exp2, "log2": log2, "cos": cos}

        def __init__(self, file: str, shape: tuple[int, int], **given: Any) -> None:
            low = NAME & 0xFFFFFFFF
            super().__init__(FILES[file], shape, name_hash=NAME, name=low - 2**32 * (low >> 31), **given)

        def state_arrays(self) -> list[np.ndarray]:
            return [np.atleast_1d(np.array(self.env[state.name], F)) for state in self.codec.states]

    return Exact


@pytest.fixture(scope="session")
def native() -> Callable[..., Native]:
    return Native


def texts(arrays: list[np.ndarray]) -> list[str]:
    return [array.astype(F).tobytes().hex(" ", 4) for array in arrays]


def hold_to(machine: Any, ranks: Mapping[str, Native], x: np.ndarray, case: str,
            residual: np.ndarray | None = None) -> None:  # fmt: skip
    """Payload, decoded values, states and what encoding leaves of the residual are the interpreter's, bit by bit, at
    two steps if there are states.
    """
    codec, step = machine.codec, machine.read_only["step"]
    for isa, rank in ranks.items():
        assert texts(rank.states) == texts(machine.state_arrays()), f"{case} at {isa}: initial states"
        if codec.init is not None:
            rank.init(x)
    for again in range(2 if codec.states else 1):
        machine.read_only["step"] = step + again
        given = x if residual is None else x + residual
        payload = machine.encode(given)
        encoded_states = texts(machine.state_arrays())
        decoded = machine.decode(payload)
        decoded_states = texts(machine.state_arrays())
        for isa, rank in ranks.items():
            where = f"{case} at {isa}, step {again}"
            rank.given.step = step + again
            left = None if residual is None else residual.copy()
            got, nonfinite = rank.encode(x, left)
            assert got is not None and not nonfinite, where
            assert got.hex() == payload.hex(), where
            assert texts(rank.states) == encoded_states, where
            if left is not None and rank.loses:
                assert texts([left]) == texts([given - decoded]), where
            delivered = rank.decode(payload)
            assert delivered is not None and texts([delivered]) == texts([decoded]), where
            assert texts(rank.states) == encoded_states, where
            rank.decode(payload, keep=True)
            assert texts(rank.states) == decoded_states, where


@pytest.fixture(scope="session")
def same_bits() -> Callable[..., None]:
    return hold_to

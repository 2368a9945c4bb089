"""Glue in C (glue.c), compiled and called while Python holds the GIL."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

import casync
from casync import _core
from casync.session.session import Session

_STRICT = ("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror")


class Counts(NamedTuple):
    accepted: int
    refused: int
    called: int
    failed: int
    wrong: int
    with_gil: int


def compile_c(source: Path, library: Path) -> Path:
    """`source` as a shared library, with no header of Python's in sight."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler on PATH")
    command = [
        compiler,
        *_STRICT,
        "-pthread",
        "-shared",
        "-fPIC",
        f"-I{casync.include()}",
        str(source),
        "-o",
        str(library),
    ]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return library


def address(capsule: object, name: str) -> ctypes.c_void_p:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(get(capsule, name.encode()))


class Glue:
    """Calls keep the GIL (`PyDLL`): what needs it meanwhile cannot go on."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._library = ctypes.PyDLL(str(compile_c(Path(__file__).with_name("glue.c"), folder / "glue.so")))
        self._capsule = session.c_session()
        self.table = address(_core.c_api, "casync._core.c_api")
        self.session = address(self._capsule, "casync.Session")

    def start(self, rank: int, ranks: int) -> None:
        holds_gil = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p)
        started = self._library.glue_start(self.table, self.session, holds_gil, rank, ranks)
        assert started == 0

    def has_called(self, times: int, seconds: float) -> bool:
        return bool(self._library.glue_wait(ctypes.c_long(times), ctypes.c_double(seconds)) == 0)

    def finish(self) -> Counts:
        counts = (ctypes.c_long * 6)()
        self._library.glue_finish(counts)
        return Counts(*counts)

    def define(self, name: str | None, kind: int = 0, compression: str | None = None) -> str:
        """What the table says of it."""
        self._library.glue_define.restype = ctypes.c_char_p
        encoded = [None if text is None else text.encode() for text in (name, compression)]
        said: bytes = self._library.glue_define(self.table, self.session, encoded[0], kind, encoded[1])
        return said.decode()

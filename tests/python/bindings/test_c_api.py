"""The table for C: what its header promises to a compiler, what it answers, and the example of the manual."""

import ctypes
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import casync.numpy as hvd
import pytest

import casync
from casync import _core
from casync.config.settings import Config
from casync.session import default
from casync.session.session import Session
from support.glue import Glue, address, compile_c

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "glue.md"


@pytest.fixture
def glue(tmp_path):
    session = Session(Config())
    yield Glue(session, tmp_path)
    session.shutdown()


def test_the_header_is_c11_and_cpp(tmp_path):
    include = '#include <casync/c_api.h>\n_Static_assert(sizeof(casync_error) == 4, "");\n'
    (tmp_path / "alone.c").write_text(include)
    compile_c(tmp_path / "alone.c", tmp_path / "alone.so")
    (tmp_path / "alone.cc").write_text(include.replace("_Static_assert", "static_assert"))
    compiler = os.environ.get("CXX", "g++")
    flags = ("-std=c++17", "-pedantic", "-Wall", "-Werror", "-fsyntax-only", f"-I{casync.include()}")
    subprocess.run([*shlex.split(compiler), *flags, tmp_path / "alone.cc"], check=True)


def test_the_example_of_the_manual(tmp_path):
    blocks = dict(
        re.findall(r"```(c|sh|python)\n(.*?)```", MANUAL.read_text(encoding="utf-8").split("## From C++")[0], re.S)
    )
    (tmp_path / "sum.c").write_text(blocks["c"])
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(blocks["sh"], shell=True, check=True, cwd=tmp_path, env=environ)
    subprocess.run([sys.executable, "-c", blocks["python"]], check=True, cwd=tmp_path, timeout=60)


def test_errors_are_returned_with_their_text(glue):
    assert glue.define("t") == ""
    assert "has no name" in glue.define(None)
    assert "kind 77" in glue.define("t", kind=77)
    assert "onebitt" in glue.define("t", compression="onebitt")


def test_a_capsule_keeps_its_session_alive(tmp_path):
    session = Session(Config())
    glue = Glue(session, tmp_path)
    session.shutdown()
    del session
    assert glue.define("t") == ""  # nothing is sent for it
    glue.start(0, 1)  # and what is submitted is refused
    counts = glue.finish()
    assert counts.accepted == 0 and counts.refused == 1 and counts.called == 0 and counts.wrong == 0


def test_a_session_is_found_by_the_number_of_its_process_set(glue):
    class Table(ctypes.Structure):
        _fields_ = [
            ("size", ctypes.c_size_t),
            ("version", ctypes.c_uint32),
            *((name, ctypes.c_void_p) for name in ("define", "submit", "error_text")),
            ("hold", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)),
            ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ]

    table = Table.from_address(glue.table.value)
    assert table.hold(0) is None
    hvd.init()
    held = table.hold(0)
    assert held == address(default.session().c_session(), "casync.Session").value
    assert table.hold(1) is None
    table.release(held)
    hvd.shutdown()
    assert table.hold(0) is None


def test_the_capsules_have_the_names_of_the_header():
    text = (Path(casync.include()) / "casync" / "c_api.h").read_text()
    assert set(re.findall(r'CAPSULE "(.*)"', text)) == {"casync._core.c_api", "casync.Session"}
    assert address(_core.c_api, "casync._core.c_api")
    with pytest.raises(ValueError):
        address(_core.c_api, "casync.Session")
    with pytest.raises(RuntimeError):
        _core.c_session(3)
    assert ctypes.c_size_t.from_address(address(_core.c_api, "casync._core.c_api").value or 0).value >= 40


def test_glue_for_tensorflow_loads_where_that_is_not():
    """In a process of its own, as another test may have loaded it."""
    adaptor = importlib.util.find_spec("casync.tensorflow")
    assert adaptor is not None and adaptor.origin is not None
    library = Path(adaptor.origin).with_name("_glue.so")
    code = f"""
import ctypes
library = ctypes.CDLL({str(library)!r})
library.casync_tensorflow_failure.restype = ctypes.c_char_p
print(library.casync_tensorflow_failure().decode())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "libtensorflow_framework.so.2 is not loaded\n"

"""`pip wheel .` as a user runs it, then the wheel in a fresh environment in which no compiler is on PATH.

Checks what is in the wheel, that the core loads, that libmpi is that environment's own (and not the one it was built
against), and that two ranks start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "build" / "wheel"

IMPORT_CORE = """
import sys, casync, casync._core
assert casync.__file__.startswith(sys.prefix), casync.__file__
print("casync", casync.__version__, "and its core load")
"""
IMPORT_MPI = """
import os, sys, casync._mpi
libmpi = {line.split()[-1] for line in open("/proc/self/maps") if "libmpi.so" in line}
assert libmpi and all(path.startswith(sys.prefix + "/") for path in libmpi), libmpi
print("rank", os.environ["CASYNC_RANK"], "of", os.environ["CASYNC_SIZE"], "loads its own libmpi")
"""


def run(command: list[str], **options) -> None:
    shown = ("..." if "\n" in word else Path(word).name for word in command)
    print("$", *shown, flush=True)
    subprocess.run(command, check=True, **options)


def build() -> Path:
    dist = SCRATCH / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    # A build folder of its own: an isolated build has its tools at paths that are gone afterwards.
    environ = os.environ | {"CASYNC_BUILD_DIR": str(SCRATCH / "cmake")}
    wheel = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", str(dist), "."]
    run(wheel, cwd=ROOT, env=environ)
    (built,) = dist.glob("casync-*.whl")
    return built


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    language = [f"casync/compll/{part}" for part in ("grammar.lark", "library/onebit.cll", "include/casync/codec.hpp")]
    for wanted in ("casync/py.typed", "casync/_core.pyi", "casync/torch/__init__.py", *language):
        assert wanted in names, f"{wanted} is not in {wheel.name}"
    for module in ("_core", "_mpi"):
        assert any(name.startswith(f"casync/{module}.") and name.endswith(".so") for name in names), module
    strays = {name.split("/")[0] for name in names} - {"casync"}
    assert all(name.endswith(".dist-info") for name in strays), strays


def main() -> int:
    wheel = build()
    check_contents(wheel)
    home = SCRATCH / "env"
    venv.create(home, clear=True, with_pip=True, symlinks=True)
    python = str(home / "bin" / "python")
    run([python, "-m", "pip", "install", "-qq", str(wheel)])
    bare = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
    bare["PATH"] = str(home / "bin")
    assert not any(shutil.which(tool, path=bare["PATH"]) for tool in ("cc", "c++", "gcc", "g++", "clang", "cmake"))
    run([python, "-c", IMPORT_CORE], env=bare, cwd="/")
    run([str(home / "bin" / "casyncrun"), "-np", "2", python, "-c", IMPORT_MPI], env=bare, cwd="/")
    return 0


if __name__ == "__main__":
    sys.exit(main())

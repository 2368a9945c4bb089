"""A file of the user's own as a codec: translated, compiled with the system's C++ compiler and loaded at its first use.

    hvd.DistributedOptimizer(optimizer, ..., compression="my.cll(bits=4)")

The compiled object is kept (casync.compll.cache) under a name that follows from all it is made of: the file, the
headers, the compiler and its options. The core knows the codec as `my@5f3a9c21`,
by the first digits of the file's SHA-256, so that ranks whose files differ disagree by name and decode no rubbish.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from casync.compll.cache import cache_folder, keep, locked
from casync.compll.check import check_program
from casync.compll.cpu.emit import emit
from casync.compll.cpu.library import ISAS, emit_plugin
from casync.compll.cuda.emit import emit as emit_cuda
from casync.compll.cuda.emit import emit_table
from casync.compll.headers import header_folders
from casync.compll.parser import parse
from casync.compll.source import read_source
from casync.errors import CasyncError, InvalidArgumentError, NotAvailableError

__all__ = ["ISA_FLAGS", "compile_file", "device_text", "resolve"]

_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-w")
ISA_FLAGS = {
    "baseline": (),
    "avx2": ("-mavx2", "-mf16c", "-mpopcnt"),
    "avx512": ("-mavx2", "-mf16c", "-mpopcnt", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
               "-mprefer-vector-width=512"),
}  # fmt: skip
_COMPILE_SECONDS = 300
_loaded: dict[tuple[str, str], str] = {}  # name and text of a file -> the codec's name
_files: dict[str, tuple[Path, str]] = {}  # the codec's name -> its file and that text


def resolve(spec: str) -> str:
    """`"my.cll(bits=4)"` as the core knows it; a spec that names no file stays as it is.

    Raises `CompllError` for a file that means nothing, `NotAvailableError` if no code can be generated for it or there
    is no compiler, `InvalidArgumentError` if it cannot be read.
    """
    name, bracket, rest = spec.partition("(")
    name = name.strip()
    if not name.endswith(".cll"):
        return spec
    path = Path(name)
    text = read_source(path)
    key = (path.stem, text)
    if key not in _loaded:
        from casync import _core

        _loaded[key] = _core.load_codec(str(compile_file(path, text)))
        _files[_loaded[key]] = path, text
    return _loaded[key] + bracket + rest


def device_text(name: str) -> str | None:
    """Return the text that NVRTC compiles for codec `name` of a file that was loaded; None if it is of no file."""
    if name not in _files:
        return None
    path, text = _files[name]
    return emit_cuda(check_program(parse(text, str(path))), _identifier(path))


def _identifier(path: Path) -> str:
    """Return a name for the file's codec that is no keyword and begins with no digit."""
    return "own_" + _stem(path)


def _stem(path: Path) -> str:
    return re.sub(r"\W", "_", path.stem)


def compile_file(path: Path, text: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The shared object of the file, compiled unless it is in the cache. Any number of processes may call at once."""
    identifier, known_as = _identifier(path), f"{_stem(path)}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    codec = check_program(parse(text, str(path)))
    kernels = emit(codec, identifier)
    others = [emit_plugin(codec, identifier, known_as), emit_table(codec, identifier)]
    compiler = _compiler(environ)
    isas = ISAS if platform.machine() in ("x86_64", "AMD64") else ISAS[:1]
    defines = ("-DCASYNC_X86_KERNELS",) if len(isas) > 1 else ()
    includes = header_folders()
    options = [*_FLAGS, *defines, *(flag for isa in isas for flag in (isa, *ISA_FLAGS[isa]))]
    key = hashlib.sha256("\0".join([kernels, *others, *compiler, *options, _headers(includes)]).encode()).hexdigest()
    cache = cache_folder(environ)
    target = cache / f"{identifier}-{key[:32]}.so"
    if target.exists():  # also where nothing can be written
        return target
    common = [*compiler, *_FLAGS, *defines, *(f"-I{folder}" for folder in includes)]
    with locked(target, str(path)):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                keep(_build(Path(folder), path, common, isas, kernels, others), target)
    return target


def _build(
    folder: Path, path: Path, common: list[str], isas: tuple[str, ...], kernels: str, others: Sequence[str]
) -> Path:
    """`kernels` are compiled once per instruction set, `others` once."""
    (folder / "kernels.cc").write_text(kernels, encoding="utf-8")
    sources = [folder / f"other_{number}.cc" for number in range(len(others))]
    for source, text in zip(sources, others, strict=True):
        source.write_text(text, encoding="utf-8")
    objects = []
    for isa in isas:
        objects.append(str(folder / f"{isa}.o"))
        extra = [*ISA_FLAGS[isa], f"-DCASYNC_KERNEL_ISA={isa}"]
        _run(path, [*common, *extra, "-c", str(folder / "kernels.cc"), "-o", objects[-1]])
    built = folder / "codec.so"
    _run(path, [*common, "-shared", *map(str, sources), *objects, "-o", str(built)])
    return built


def _run(path: Path, command: list[str]) -> None:
    """Run the compiler. If it takes too long, also end what it has started."""
    what = f"the code that was generated for {path} does not compile: `{shlex.join(command[:1])}`"
    try:
        compiler = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    except OSError as error:
        raise NotAvailableError(f"{what} cannot be run: {error}") from None
    try:
        said, _ = compiler.communicate(timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(compiler.pid, signal.SIGKILL)
        compiler.communicate()
        raise NotAvailableError(f"{what} took more than {_COMPILE_SECONDS} s") from None
    if compiler.returncode != 0:
        raise CasyncError(f"{what} ended with status {compiler.returncode} and said\n{said}")
    if not Path(command[-1]).exists():
        raise CasyncError(f"{what} ended well and wrote nothing")


def _compiler(environ: Mapping[str, str]) -> list[str]:
    try:
        given = shlex.split(environ.get("CXX", ""))
    except ValueError as error:
        raise InvalidArgumentError(f"CXX={environ['CXX']!r} is no command: {error}") from None
    for command in [given] if given else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0], path=environ.get("PATH")):
            return command
    missing = f"CXX={shlex.join(given)} is not there" if given else "there is none on PATH"
    raise NotAvailableError(
        f"a CompLL file of your own needs a C++ compiler on each host, and {missing}: install one (apt-get install "
        "g++) or name it with CXX=..."
    )


def _headers(includes: list[Path]) -> str:
    digest = hashlib.sha256()
    for folder in includes:
        for header in sorted([*folder.glob("casync/*.hpp"), *folder.glob("codec/**/*.hpp")]):
            digest.update(header.read_bytes())
    return digest.hexdigest()

"""The program that CMake runs to translate library files: `python -m casync.compll.build OUT NAME...`.

Writes OUT/NAME.cc for each codec's inner loops, OUT/NAME_cuda.cc for how its kernels for GPUs are launched, and
OUT/library.cc with what the runtime must know of them. A file is written only if its text changes, so that an unchanged
one is not compiled again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from casync.compll import typed
from casync.compll.check import check_program
from casync.compll.cpu.emit import emit
from casync.compll.cpu.library import emit_library
from casync.compll.cuda.emit import emit_table
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.source import read_source

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    out, names = Path(argv[0]), argv[1:]
    out.mkdir(parents=True, exist_ok=True)
    codecs = {name: _checked(name) for name in names}
    for name, codec in codecs.items():
        _write(out / f"{name}.cc", emit(codec, name))
        _write(out / f"{name}_cuda.cc", emit_table(codec, name))
    _write(out / "library.cc", emit_library(codecs))
    return 0


def _checked(name: str) -> typed.Codec:
    path = library_files()[name]
    return check_program(parse(read_source(path), path.name))


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Device code by name: of codecs of the library and of one's own, and what all of them need.

`python -m casync.compll.cuda.texts OUT NAME` writes a text, for tests that compile it with another compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

from casync.compll.check import check_program
from casync.compll.cuda.emit import emit
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.plugin import device_text
from casync.compll.source import read_source

__all__ = ["COMMON", "text_of"]

COMMON = "common"
"""The name of what no codec generates."""


def text_of(name: str) -> str:
    """Return the text that NVRTC compiles for codec `name`, or for `COMMON`; empty if the codec needs none."""
    if name == COMMON:
        return "".join(f'#include "codec/cuda/kernels/{header}.hpp"\n' for header in ("copy", "raw", "report"))
    if (path := library_files().get(name)) is None:
        return device_text(name) or ""
    return emit(check_program(parse(read_source(path), path.name)), name)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text_of(sys.argv[2]), encoding="utf-8")

"""Any bytes as a CompLL file: read, parsed, formatted, checked, counted and translated for the CPU and for CUDA.

Legal are CompllError, NotAvailableError (what is not translated yet) and, of bytes that are no text,
UnicodeDecodeError; anything else that leaves `look_at` is a finding. run_atheris.py calls it with what atheris makes
up, and tests/python/compll/test_corpus.py with the inputs that are kept.
"""

from __future__ import annotations

import contextlib

from casync.compll import CompllError, check_program, format_program, parse
from casync.compll.count import count_lines
from casync.compll.cpu.emit import emit as emit_cpu
from casync.compll.cpu.library import emit_plugin
from casync.compll.cuda.emit import emit as emit_cuda
from casync.errors import NotAvailableError

__all__ = ["look_at"]


def look_at(data: bytes) -> None:
    with contextlib.suppress(CompllError, UnicodeDecodeError):
        program = parse(data.decode("utf-8"))
        text = format_program(program)
        again = parse(text)
        assert again.items == program.items, "fmt keeps the tree"
        assert format_program(again) == text, "fmt of what fmt wrote changes nothing"
        count_lines(program)
        codec = check_program(program)
        with contextlib.suppress(NotAvailableError):
            emit_cpu(codec, "fuzzed")
            emit_plugin(codec, "fuzzed", "fuzzed@0")
        with contextlib.suppress(NotAvailableError):
            emit_cuda(codec, "fuzzed")

"""CompLL: gradient compression algorithms in a few lines of a C-like language (docs/compll.md).

    codec = check_program(parse(text, "onebit.cll"))

`parse` gives the syntax tree (tree.py), `check_program` the typed one (typed.py), from which code is generated. Both
raise `CompllError`, whose text shows the place.
"""

from __future__ import annotations

from casync.compll.check import check_program
from casync.compll.diagnostics import CompllError
from casync.compll.fmt import format_program
from casync.compll.operators import register_operator
from casync.compll.parser import parse

__all__ = ["CompllError", "check_program", "format_program", "parse", "register_operator"]

"""The codecs of the library whose payloads are of one length for a unit, a header and a code for each element."""

from __future__ import annotations

from casync.compll.check import check_program
from casync.compll.cpu.quantiser import is_quantiser
from casync.compll.ir.choices import choices_of
from casync.compll.ir.lower import lower
from casync.compll.library import library_files
from casync.compll.parser import parse

__all__ = ["library_quantisers"]


def library_quantisers() -> set[str]:
    """Their names."""
    checked = {name: check_program(parse(path.read_text("utf-8"), path.name)) for name, path in library_files().items()}
    return {name for name, codec in checked.items() if is_quantiser(codec, lower(codec, choices_of(codec)[0]))}

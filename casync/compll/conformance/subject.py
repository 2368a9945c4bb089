"""The subject that is tested: a codec as a script names it, and what its file promises beyond the codec contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casync.compll import typed
from casync.compll.check import check_program
from casync.compll.conformance.contract import Codec
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.source import read_source
from casync.errors import InvalidArgumentError

__all__ = ["Subject", "open_subject"]


@dataclass(frozen=True)
class Subject:
    """`make` gives an instance of the codec. `contractive`: decoding is never further from x than 0 is. `draws`: it
    rounds with random numbers of a rank's own, so that bytes must differ between steps, ranks and roles.
    """

    make: Callable[[], Codec]
    contractive: bool
    draws: bool = False


def open_subject(spec: str) -> Subject:
    """`"my.cll(bits=4)"` or `"onebit"`, compiled as a training job would.

    Raises what `casync.compll.plugin.resolve` does, and `InvalidArgumentError` for a codec that is not known or encodes
    nothing.
    """
    from casync import _core  # late: not needed to describe a subject
    from casync.compll.plugin import resolve

    resolved = resolve(spec)
    info = _core.Codec(resolved).info
    if info.identity:
        raise InvalidArgumentError(f"{spec} sends gradients as they are: there is nothing to test")
    name = spec.partition("(")[0].strip()
    path = Path(name) if name.endswith(".cll") else library_files().get(name)
    if path is None:  # written in C++: the contract wraps feedback around contractive codecs only
        return Subject(lambda: _core.Codec(resolved), info.feedback == "wrapper")
    file = check_program(parse(read_source(path), str(path)))
    draws = any(
        isinstance(node, (typed.Draw, typed.StochasticFloor)) and not node.drawing.shared for node in _nodes(file)
    )
    return Subject(lambda: _core.Codec(resolved), file.properties.contractive, draws)


def _nodes(value: Any) -> Iterator[Any]:
    """Everything that a typed tree is made of."""
    if dataclasses.is_dataclass(value):
        yield value
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _nodes(part)

"""The compiled modules themselves."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]


def binary(module: str) -> bytes:
    """The file of a compiled module, which need not be loadable here (MPI's is not without its library)."""
    found = importlib.util.find_spec(f"casync.{module}")
    if found is None or found.origin is None:
        pytest.skip(f"casync.{module} was not built")
    return Path(found.origin).read_bytes()


@pytest.mark.parametrize("module", ["_core", "_mpi"])
def test_no_message_carries_the_path_of_the_builder(module):
    content = binary(module)
    assert b"\0casync_core/src/" in content, "failed checks name their source file"
    assert re.findall(rb"[^\0]*/casync_core/[^\0]*", content) == []


def test_the_core_does_not_know_where_it_was_built():
    assert str(CHECKOUT).encode() not in binary("_core")

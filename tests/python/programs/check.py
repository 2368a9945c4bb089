"""What the test files of this folder share: the cells of their doors, and one run of all of them."""

from __future__ import annotations

from typing import Any

import pytest

from support.files import load
from tests.python.programs.harness import Asked, Outcome, ending, faults, refusal

interplay = load("tools/interplay.py")


def cells_of(*doors: str) -> list[Any]:
    """As parameters of a test, each with the name of its situation."""
    return [
        pytest.param(
            cell,
            id=f"{cell.door}: {cell.situation}",
            marks=[pytest.mark.xfail(reason=cell.why, strict=True)] if cell.verdict == "wrong" else [],
        )
        for cell in interplay.cells(interplay.program_files())
        if cell.door in doors and cell.verdict != "absent"
    ]


def asked(cell: Any, family: str) -> Asked:
    error = cell.options.get("error", "")
    apart = cell.options.get("apart", False)
    return Asked(cell.situation, cell.door, family, cell.module, cell.verdict, error, apart)


def check(cell: Any, outcome: Outcome) -> None:
    """Fails with everything that is wrong with a cell."""
    options = cell.options
    ranks = options.get("ranks", 2)
    if options.get("apart", False):
        found = ending(outcome, options["ends"], options["says"])
    elif cell.verdict == "refused":
        found = refusal(outcome, options["error"], options["says"], options.get("batches", 0), ranks)
    else:
        found = faults(outcome, ranks, options.get("far", 1e-4))
    assert not found, "\n".join(found)

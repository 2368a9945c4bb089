"""What the test files of this folder share: the cells of their doors, and one run of all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.files import load
from tests.python.programs.harness import Asked, Outcome, faults, refusal, run_apart

interplay = load("tools/interplay.py")


def cells_of(door: str, *, apart: bool = False) -> list[Any]:
    """As parameters of a test, each with its situation as its name."""
    return [
        pytest.param(cell, id=cell.situation)
        for cell in interplay.cells(interplay.program_files())
        if cell.door == door and cell.verdict != "absent" and cell.options.get("apart", False) == apart
    ]


def asked(cell: Any, family: str) -> Asked:
    error = cell.options.get("error", "")
    return Asked(cell.situation, cell.door, family, cell.module, cell.verdict, error)


def check(cell: Any, outcome: Outcome) -> None:
    """Fails with everything that is wrong with a cell."""
    ranks = cell.options.get("ranks", 2)
    if cell.verdict == "refused":
        options = cell.options
        found = refusal(outcome, options["error"], options["says"], options.get("batches", 0), ranks)
    else:
        found = faults(outcome, ranks)
    assert not found, "\n".join(found)


def check_apart(cell: Any, family: str, folder: Path) -> None:
    """Run a cell whose program ends processes. No rank ends by a signal that the program did not send."""
    statuses, said, why = run_apart(asked(cell, family), folder, cell.options.get("ranks", 2))
    assert not why and statuses == list(cell.options["ends"]), f"{why} exit statuses {statuses}\n{said}"
    assert re.search(cell.options["says"], said, re.DOTALL), said

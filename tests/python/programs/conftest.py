"""One run of a file's cells, for all of its tests."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.python.programs.check import asked
from tests.python.programs.harness import Asked, Outcome, run_all


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Asked, Outcome]:
    """Of the cells that were chosen on pytest's command line, for as many ranks as each wants."""
    chosen: dict[int, list[Any]] = {}
    for item in request.session.items:
        if getattr(item, "module", None) is request.module and "cell" in item.callspec.params:  # type: ignore[attr-defined]
            cell = item.callspec.params["cell"]  # type: ignore[attr-defined]
            chosen.setdefault(cell.options.get("ranks", 2), []).append(asked(cell, request.module.FAMILY))
    found: dict[Asked, Outcome] = {}
    for ranks, cells in sorted(chosen.items()):
        found |= run_all(cells, tmp_path_factory.mktemp("programs"), ranks, sys.executable)
    return found

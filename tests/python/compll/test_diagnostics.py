"""Every kind of diagnostic has an example and its text under tests/compll/diagnostics: KIND.cll, or KIND--DETAIL.cll.

python tests/python/compll/test_diagnostics.py     writes the texts anew; `git diff` shows what changed
"""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.compll import CompllError, check_program, parse
from casync.compll.diagnostics import KINDS
from casync.errors import CasyncError

EXAMPLES = sorted((Path(__file__).parents[2] / "compll" / "diagnostics").glob("*.cll"))


def diagnose(path: Path) -> CompllError:
    try:
        check_program(parse(path.read_text(encoding="utf-8"), path.name))
    except CompllError as error:
        return error
    raise AssertionError(f"{path.name}: nothing is wrong with it")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_text_is_the_golden_one(path: Path) -> None:
    error = diagnose(path)
    assert error.finding == path.stem.split("--")[0], error
    assert f"{error}\n" == path.with_suffix(".txt").read_text(encoding="utf-8")
    assert isinstance(error, CasyncError) and isinstance(error, ValueError)


def test_every_kind_has_an_example() -> None:
    assert {path.stem.split("--")[0] for path in EXAMPLES} == KINDS


def test_every_kind_is_raised_somewhere() -> None:
    folder = Path(__file__).parents[3] / "casync" / "compll"
    raised = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py") if path.name != "diagnostics.py")
    assert {kind for kind in KINDS if f'"{kind}"' not in raised} == set()


if __name__ == "__main__":
    for example in EXAMPLES:
        example.with_suffix(".txt").write_text(f"{diagnose(example)}\n", encoding="utf-8")

"""What decides whether the slow tests of a group run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import unchanged


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for place in unchanged.GROUPS["compll"]:
        path = tmp_path / place
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a")
        else:
            path.mkdir(parents=True, exist_ok=True)
            (path / "file.py").write_text(place)
    return tmp_path


def test_any_file_that_the_tests_depend_on_changes_the_digest(tree: Path) -> None:
    before = unchanged.digest("compll", tree)
    assert unchanged.digest("compll", tree) == before
    for place in unchanged.GROUPS["compll"]:
        path = tree / place if (tree / place).is_file() else tree / place / "file.py"
        text = path.read_text()
        path.write_text(text + " ")
        assert unchanged.digest("compll", tree) != before
        path.write_text(text)
    new = tree / "casync/compll/deep/new.cll"
    new.parent.mkdir()
    new.write_text("")
    assert unchanged.digest("compll", tree) != before
    new.rename(new.with_name("new.pyc"))  # what Python makes
    assert unchanged.digest("compll", tree) == before


def test_a_group_has_passed_only_with_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "passed.json"
    monkeypatch.setattr(unchanged, "PASSED", note)
    assert not unchanged.has_passed("compll")
    note.write_text(json.dumps({"compll": "of other files"}))
    assert not unchanged.has_passed("compll")
    note.write_text(json.dumps({"compll": unchanged.digest("compll")}))
    assert unchanged.has_passed("compll")


def test_all_that_a_group_names_exists() -> None:
    for place in [*unchanged.GROUPS["compll"], unchanged.TESTS["compll"]]:
        assert (unchanged.ROOT / place).exists(), place

"""The commands that the pages tell a reader to type name what is in this repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = ("benchmarks", "casync", "tests", "tools")


def missing_modules(text: str) -> list[str]:
    """Those of our modules that `python -m` cannot run."""
    named = re.findall(r"\bpython3? -m ([\w.]*\w)", text)
    ours = [name for name in named if name.partition(".")[0] in OURS]
    return [name for name in ours if not _can_run(ROOT.joinpath(*name.split(".")))]


def _can_run(place: Path) -> bool:
    return (place / "__main__.py").is_file() or place.with_suffix(".py").is_file()


def missing_targets(text: str) -> list[str]:
    """Targets that `make` does not have; `bench-NAME` is for each of the benchmarks."""
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for named in re.findall(r"^([\w -]+):", rules, re.MULTILINE) for name in named.split()}
    benchmarks = ROOT / "benchmarks"
    targets |= {f"bench-{path.parent.name}" for path in benchmarks.glob("*/__main__.py")}
    targets |= {f"bench-{path.stem}" for path in benchmarks.glob("*.py") if "__main__" in path.read_text("utf-8")}
    return [name for name in re.findall(r"(?:`|^)make ([\w-]+)", text, re.MULTILINE) if name not in targets]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_there_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_modules(text) == [] and missing_targets(text) == []


def test_what_is_not_there_is_found() -> None:
    assert missing_modules("`python -m benchmarks` and `python -m casync doctor`, python -m pip") == ["benchmarks"]
    assert missing_targets("run `make bench-step_time` or\nmake bench-nothing, and make it so") == ["bench-nothing"]

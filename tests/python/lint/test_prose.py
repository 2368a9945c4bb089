"""Prose of the pages: lines that fit, paragraphs that one reads at once, and links that lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MADE = ("docs/_build", "docs/api/")
# Not pages of the manual's style: a record of changes, and a table that tests write.
OTHERS = ("CHANGELOG.md", "docs/interplay.md")
PAGES = [
    str(path.relative_to(ROOT))
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if not str(path.relative_to(ROOT)).startswith(MADE) and str(path.relative_to(ROOT)) not in OTHERS
]
LONGEST_LINE, LONGEST_PARAGRAPH = 120, 5


def faults(text: str) -> Iterator[str]:
    """Lines that are too long and paragraphs of too many lines; code, tables and headings do not count."""
    is_code, length = False, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"\s*```", line):
            is_code, length = not is_code, 0
        elif is_code or not line.strip() or line.startswith(("#", "|", "<!--")):
            length = 0
        else:
            length = 1 if re.match(r"\s*([-*]|\d+\.) ", line) else length + 1
            if len(line) > LONGEST_LINE:
                yield f"line {number} has {len(line)} characters"
            if length == LONGEST_PARAGRAPH + 1:
                yield f"line {number}: a paragraph of more than {LONGEST_PARAGRAPH} lines"


def dead_links(page: Path) -> list[str]:
    """Files that a page links to and that are not there; code does not count."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    return [link for link in links if link and ":" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_prose_is_easy_to_take_in(page):
    assert list(faults((ROOT / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    assert dead_links(ROOT / page) == []


def test_faults_are_found(tmp_path):
    assert list(faults("x" * 121)) == ["line 1 has 121 characters"]
    assert list(faults("a\n" * 5 + "\n" + "b\n" * 6)) == ["line 12: a paragraph of more than 5 lines"]
    assert list(faults("```\n" + "x" * 121 + "\n```\n| " + "y" * 121 + "\n" + "- z\n" * 9)) == []
    (tmp_path / "a.md").write_text("[a](a.md#b) [c](c.md) `[d](d.md)` [e](https://doi.org)")
    assert dead_links(tmp_path / "a.md") == ["c.md"]

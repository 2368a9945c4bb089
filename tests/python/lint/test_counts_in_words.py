"""Numbers that the README says in words."""

from pathlib import Path

from casync.compll.library import library_files

README = Path(__file__).parents[3] / "README.md"
WORDS = {18: "Eighteen", 19: "Nineteen", 20: "Twenty", 21: "Twenty-one", 22: "Twenty-two", 23: "Twenty-three"}


def test_the_readme_counts_the_codecs() -> None:
    assert f"[{WORDS[len(library_files())]} compression algorithms]" in README.read_text(encoding="utf-8")

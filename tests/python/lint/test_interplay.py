"""docs/interplay.md is what the tests' marks say, and nothing that it promises is without a test."""

from __future__ import annotations

import pytest

from support.files import load


@pytest.fixture(scope="module")
def interplay():
    return load("tools/interplay.py")


def test_the_document_is_fresh(interplay):
    assert interplay.DOCUMENT.read_text(encoding="utf-8") == interplay.document(), "run `python tools/interplay.py`"


def marked(*arguments: str, test: str = "test_x") -> str:
    return f"@pytest.mark.interplay({', '.join(map(repr, arguments))})\ndef {test}(): ...\n"


def test_tests_that_say_the_same_share_a_line(interplay):
    files = {
        "a.py": marked("Ctrl-C", "all", "supported") + marked("Ctrl-C", "all", "supported", test="test_y"),
        "b.py": marked("gradient clipping", "DistributedOptimizer", "refused", "too early"),
    }
    marks = [mark for name, source in files.items() for mark in interplay.marks_in(name, source)]
    assert interplay.table(marks).splitlines() == [
        "| gradient clipping | DistributedOptimizer | refused: too early | `test_x` |",
        "| Ctrl-C | anything | supported | `test_x`, `test_y` |",
    ]


@pytest.mark.parametrize(
    "arguments",
    [("Ctrl-C", "all"), ("Ctrl-C", "DDP hook", "supported"), ("Ctrl-C", "all", "ignored"), ("tea", "all", "supported")],
)
def test_a_mark_without_a_place_is_refused(arguments, interplay):
    with pytest.raises(interplay.BadMark, match="a.py: test_x: "):
        list(interplay.marks_in("a.py", marked(*arguments)))


def test_what_has_no_test_is_named(interplay):
    with pytest.raises(interplay.BadMark, match="Ctrl-C with all"):
        interplay.collect({"a.py": marked("submits from several threads", "all", "supported")})

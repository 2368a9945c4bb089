"""Where the residual is left by what encodes, and where it takes decoding to know what was sent."""

from __future__ import annotations

import pytest

from casync.compll.check import check_program
from casync.compll.ir.choices import choices_of
from casync.compll.ir.lower import lower
from casync.compll.ir.program import loses
from casync.compll.library import library_files
from casync.compll.parser import parse


def left_by_encoding(text: str) -> bool:
    codec = check_program(parse(text, "given.cll"))
    return all(loses(lower(codec, choice).rounds[0]) for choice in choices_of(codec))


def library_file(name: str) -> str:
    return library_files()[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["onebit", "tbq", "threelc", "efsignsgd", "int4"])
def test_what_was_sent_of_an_element_is_known_while_it_is_packed(name: str) -> None:
    assert left_by_encoding(library_file(name))


@pytest.mark.parametrize("name", ["adacomp", "dgc", "graddrop", "powersgd", "terngrad", "topk"])
def test_no_residual_is_left_where_there_is_none_or_sums_and_places_matter(name: str) -> None:
    assert not left_by_encoding(library_file(name))


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("121, 14", "121, 15"),  # a run of 15 would be 256, which no byte holds
        ("121, 14", "120, 14"),  # decoding makes runs of 121 of them
        ("code - 241", "code - 242"),
        ("? 121 : code", "? 122 : code"),
        ("code >= 243 ? 121", "code >= 242 ? 121"),  # 242 is also five digits of 2
        ("? 81 :", "? 82 :"),  # not a multiple of 27 * 3
        ("? 27 :", "? 9 :"),  # two digits of one weight
        ("% 3 - 1", "% 4 - 1"),
        ("% 3 - 1", "% 2 - 1"),
        ("in [1, 1.99]", "in [0.5, 1.99]"),  # digits may be 3, and sums more than 242
        ("reduce(gradient, maxAbs)", "reduce(map(gradient, abs), add)"),  # nothing says that no element is larger
        ("(int32)q + 1", "(int32)q + 2"),
    ],
)
def test_packing_that_may_lose_something_is_not_seen_through(written: str, instead: str) -> None:
    text = library_file("threelc")
    assert written in text
    assert not left_by_encoding(text.replace(written, instead))

"""Mutations of good files: whatever the text, parse, fmt and check give a tree or a CompllError, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casync.compll import CompllError, check_program, format_program, parse
from casync.compll.library import library_files

FOLDER = Path(__file__).parents[2] / "compll"
FILES = [*library_files().values(), *FOLDER.glob("*.cll"), *FOLDER.glob("*/*.cll")]
TEXTS = sorted(path.read_text(encoding="utf-8") for path in FILES)


def look_at(text: str) -> None:
    try:
        program = parse(text)
        assert parse(format_program(program)).items == program.items
        check_program(program)
    except CompllError as error:
        assert str(error).startswith("<text>:")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_mutation_is_a_tree_or_a_diagnostic(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    tokens = re.findall(r"\w+|\s+|.", text)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(tokens) - 1))
        kind = data.draw(st.sampled_from(["drop", "swap", "copy", "put"]))
        other = data.draw(st.integers(0, len(tokens) - 1))
        if kind == "drop":
            del tokens[at : at + data.draw(st.integers(1, 6))]
            tokens = tokens or [""]
        elif kind == "swap":
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == "copy":
            tokens.insert(at, tokens[other])
        else:
            tokens.insert(at, data.draw(st.text(max_size=3)))
    look_at("".join(tokens))


@settings(max_examples=100, deadline=None)
@given(first=st.sampled_from(TEXTS), second=st.sampled_from(TEXTS), cut=st.floats(0, 1), resume=st.floats(0, 1))
def test_halves_of_two_files(first: str, second: str, cut: float, resume: float) -> None:
    look_at(first[: int(cut * len(first))] + second[int(resume * len(second)) :])


ODD = ["", "\0", "\r\n", "\\", '"', "/*", "//", "é", "\ufeff", "void encode", "\u2028float x;", "float x;\rfloat y;"]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts(text: str) -> None:
    look_at(text)

"""Formatting: the tree stays, comments stay, and twice is once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casync.compll import format_program, parse, tree
from casync.compll.fmt import COLUMNS
from casync.compll.library import library_files

FOLDER = Path(__file__).parents[2] / "compll"
FILES = [*library_files().values()]
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in [*FILES, FOLDER / "figure5.cll"]}

AT = tree.Span(0, 0, 1, 1)
COMMENTS = ["// one\n", "/* two */", "\n// three\n\n", "/* four\n   lines */", "\n\n"]
NAMES = st.sampled_from(["a", "b", "gradient", "Q", "params", "size"])
NUMBERS = st.sampled_from(["0", "7", "0.5", "1e-3", "0x1p-100", "0xff", ".5", "3."])
OPERATORS = ["+", "-", "*", "/", "%", "<<", ">>", "<", ">", "<=", ">=", "==", "!=", "&", "|", "^", "&&", "||"]


def node(kind: type, *parts: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(*parts).map(lambda values: kind(*values, span=AT))


def tuples(of: st.SearchStrategy, least: int = 0, most: int = 3) -> st.SearchStrategy:
    return st.lists(of, min_size=least, max_size=most).map(tuple)


PLAIN_TYPES = node(tree.TypeName, st.sampled_from(["float", "uint2", "int32", "half"]), st.none(), st.integers(0, 2))
LEAVES = node(tree.Number, NUMBERS) | node(tree.Name, NAMES)


def larger(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        node(tree.Unary, st.sampled_from(["-", "+", "!", "~"]), inner),
        node(tree.Binary, st.sampled_from(OPERATORS), inner, inner),
        node(tree.Choice, inner, inner, inner),
        node(tree.Cast, PLAIN_TYPES, inner),
        node(tree.Member, inner, NAMES),
        node(tree.Index, inner, inner),
        node(tree.Call, NAMES, tuples(inner)),
        node(tree.Draw, st.sampled_from(["random", "shared_random"]), PLAIN_TYPES, tuples(inner)),
    )


EXPRESSIONS = st.recursive(LEAVES, larger, max_leaves=12)
TYPES = PLAIN_TYPES | node(tree.TypeName, st.sampled_from(["uint", "int"]), EXPRESSIONS, st.integers(0, 2))
SIMPLE = st.one_of(
    node(tree.Declare, tuples(node(tree.Variable, TYPES, NAMES), 1), st.none() | EXPRESSIONS),
    node(tree.Assign, tuples(node(tree.Target, NAMES, st.none() | EXPRESSIONS), 1), EXPRESSIONS),
    node(tree.CallStatement, node(tree.Call, NAMES, tuples(EXPRESSIONS))),
    node(tree.Return, tuples(EXPRESSIONS)),
)
STATEMENTS = st.recursive(SIMPLE, lambda inner: node(tree.If, EXPRESSIONS, tuples(inner), tuples(inner)), max_leaves=5)
DOMAINS = node(tree.Limits, tuples(EXPRESSIONS, 1), st.just(False)) | node(
    tree.Limits, tuples(EXPRESSIONS, 2, 2), st.just(True)
)
FIELDS = node(tree.Field, TYPES, NAMES, st.none() | EXPRESSIONS, st.none() | DOMAINS)
ONE_NAME = NAMES.map(lambda name: (name,))
ARGUMENTS = node(tree.Variable, TYPES | st.just("Params"), NAMES)
ITEMS = st.one_of(
    node(tree.ParamBlock, NAMES, tuples(FIELDS)),
    node(tree.Properties, tuples(node(tree.Property, NAMES, EXPRESSIONS))),
    node(tree.State, TYPES, NAMES, tuples(EXPRESSIONS), EXPRESSIONS, st.none() | st.just("long  name")),
    node(tree.Global, TYPES, tuples(NAMES, 1), st.none()) | node(tree.Global, TYPES, ONE_NAME, EXPRESSIONS),
    node(tree.Function, tuples(TYPES), NAMES, tuples(ARGUMENTS), tuples(STATEMENTS)),
)


@settings(max_examples=300, deadline=None)
@given(items=tuples(ITEMS, 0, 4))
def test_what_is_printed_is_what_was_meant(items: tuple[tree.Item, ...]) -> None:
    text = format_program(tree.Program(items, (), "", "x"))
    again = parse(text)
    assert again.items == items
    assert format_program(again) == text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_library_files_are_formatted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert format_program(parse(text)) == text
    assert max(map(len, text.splitlines())) <= COLUMNS


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_comments_stay_wherever_they_are(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(sorted(TEXTS.values())))
    places = [match.start() for match in re.finditer(r"\s", re.sub(r"//.*\n|\\\n", lambda m: "x" * len(m[0]), text))]
    for place in sorted(data.draw(st.lists(st.sampled_from(places), max_size=4, unique=True)), reverse=True):
        comment = data.draw(st.sampled_from(COMMENTS))
        text = f"{text[:place]} {comment}{text[place:]}"
    program = parse(text)
    once = format_program(program)
    again = parse(once)
    assert again.items == program.items
    assert Counter(c.text for c in again.comments) == Counter(c.text for c in program.comments)
    assert format_program(again) == once


def test_a_long_line_is_broken_behind_operators() -> None:
    long = " + ".join(["a_rather_long_name"] * 12)
    lines = format_program(parse(f"float x = {long};")).splitlines()
    assert len(lines) == 3 and all(len(line) <= COLUMNS for line in lines)
    assert all(line.endswith(" +") for line in lines[:-1])


def test_a_call_stays_on_one_line_where_it_can() -> None:
    inner = "min(a_rather_long_name, another_name)"
    lines = format_program(parse(f"float x = max({', '.join([inner] * 4)});")).splitlines()
    assert [line.strip() for line in lines] == [f"float x = max({inner}, {inner},", f"{inner}, {inner});"]

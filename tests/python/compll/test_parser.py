"""Text to tree: figure 5 as it is printed, precedence, and what a tree leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.compll import tree
from casync.compll.diagnostics import CompllError
from casync.compll.parser import MAX_NESTING, parse

FIGURE_5 = Path(__file__).parents[2] / "compll" / "figure5.cll"


def expression(text: str) -> tree.Expression:
    (item,) = parse(f"float x = {text};").items
    assert isinstance(item, tree.Global) and item.value is not None
    return item.value


def test_figure_5_parses_as_printed() -> None:
    block, names, udf, encode = parse(FIGURE_5.read_text(encoding="utf-8")).items
    assert isinstance(block, tree.ParamBlock) and block.fields[0].name == "bitwidth"
    assert isinstance(names, tree.Global) and names.names == ("min", "max", "gap")
    assert isinstance(udf, tree.Function) and udf.results[0].element == "uint2"
    assert isinstance(encode, tree.Function) and [argument.name for argument in encode.arguments] == [
        "gradient",
        "compressed",
        "params",
    ]
    assert len(encode.body) == 6


def test_the_figures_missing_semicolon_is_pointed_at() -> None:
    printed = FIGURE_5.read_text(encoding="utf-8").replace("- 1);", "- 1)")
    with pytest.raises(CompllError) as error:
        parse(printed, "figure5.cll")
    assert error.value.finding == "semicolon"
    assert "figure5.cll:13:53" in str(error.value)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("a << b + c", "a << (b + c)"),
        ("a < b == c > d", "(a < b) == (c > d)"),
        ("a & b == c", "a & (b == c)"),
        ("a && b || c", "(a && b) || c"),
        ("a ? b : c ? d : e", "a ? b : (c ? d : e)"),
        ("-a.size", "-(a.size)"),
        ("(float)a * b", "((float)a) * b"),
        ("a \\\n + /* so */ b // there\n", "a + b"),
    ],
)
def test_precedence_is_that_of_c(text: str, same: str) -> None:
    assert expression(text) == expression(same)


def test_random_is_no_comparison() -> None:
    assert isinstance(expression("random<float>(0, 1) < limit"), tree.Binary)


def test_several_results_take_the_type_before() -> None:
    (function,) = parse("void f() { float low, high, uint2* q = extract(c); }").items
    assert isinstance(function, tree.Function) and isinstance(function.body[0], tree.Declare)
    types = [variable.type for variable in function.body[0].variables]
    assert [type_.element for type_ in types if isinstance(type_, tree.TypeName)] == ["float", "float", "uint2"]


@pytest.mark.parametrize("text", ["-" * 5000 + "1", "1" + "+1" * 5000, "(" * 5000 + "1" + ")" * 5000])
def test_nesting_has_an_end(text: str) -> None:
    try:
        assert expression(text) == tree.Number("1", span=tree.Span(0, 1, 1, 1)), MAX_NESTING
    except CompllError as error:
        assert error.finding == "nesting"

"""The table of operators: documented, complete for table 4, and open to others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casync.compll import CompllError, check_program, parse, register_operator
from casync.compll.functions import ELEMENT_FUNCTIONS, READ_ONLY
from casync.compll.operators import OPERATORS, TABLE_4, OperatorCall
from casync.compll.types import Array, Type

DOCS = (Path(__file__).parents[3] / "docs" / "compll.md").read_text(encoding="utf-8")


def test_table_4_is_there() -> None:
    table_4 = {"sort", "filter", "map", "reduce", "random", "concat", "extract", "decomp", "matmul"}
    assert {name for name, operator in OPERATORS.items() if TABLE_4 in operator.origin} == table_4


def test_the_manual_has_the_tables() -> None:
    for operator in OPERATORS.values():
        assert f"| `{operator.usage}` | {operator.doc} | {', '.join(operator.origin)} |" in DOCS, operator.name
    for name, function in ELEMENT_FUNCTIONS.items():
        assert f"| `{name}` | {function.arity} | {function.doc} |" in DOCS
    for name, value in READ_ONLY.items():
        assert f"| `{name}` | {value.element} | {value.doc} |" in DOCS


@pytest.fixture
def halves() -> Iterator[None]:
    def rule(call: OperatorCall) -> tuple[Type, ...]:
        (array,) = call.arrays
        return (Array(array.element, call.counted()),)

    register_operator(
        "halves", parameters=("array",), usage="halves(G)", doc="Every second one.", origin=("a", "b"), rule=rule
    )
    yield
    del OPERATORS["halves"]


TEXT = """
properties { aggregation = gather; bound = 4 * size + 4; }
void encode(float* gradient, uint8* compressed) { compressed = concat(halves(gradient)); }
"""


def test_an_operator_can_be_registered(halves: None) -> None:
    assert [item.counted for item in check_program(parse(TEXT)).payload] == [True]
    with pytest.raises(CompllError, match=r"expected: halves\(G\)"):
        check_program(parse(TEXT.replace("halves(gradient)", "halves(gradient, 2)")))
    with pytest.raises(ValueError, match="there is an operator halves already"):
        register_operator("halves", parameters=(), usage="", doc="", origin=(), rule=lambda call: ())


def test_it_is_gone_where_nobody_registered_it() -> None:
    with pytest.raises(CompllError, match="no function `halves`"):
        check_program(parse(TEXT))

"""The table of operators: documented, complete for table 4, and closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.compll import CompllError, check_program, parse, register_operator
from casync.compll.functions import ELEMENT_FUNCTIONS, READ_ONLY
from casync.compll.operators import OPERATORS, TABLE_4
from casync.errors import NotAvailableError

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


TEXT = """
properties { aggregation = gather; bound = 4 * size + 4; }
void encode(float* gradient, uint8* compressed) { compressed = concat(halves(gradient)); }
"""


def test_an_operator_that_could_never_run_is_refused() -> None:
    with pytest.raises(NotAvailableError, match="operator halves: .*cannot be given .* yet.* map, filter or reduce"):
        register_operator("halves", parameters=("array",), usage="halves(G)", doc="Every second one.", origin=("a",))
    with pytest.raises(CompllError, match="no function `halves`"):
        check_program(parse(TEXT))

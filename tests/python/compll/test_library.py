"""The library: what each sends, keeps and declares, and that table 5 holds."""

from __future__ import annotations

import pytest

from casync.compll import check_program, parse, tree, typed
from casync.compll.count import PAPER, count_lines, table
from casync.compll.library import library_files
from casync.compll.operators import OPERATORS, TABLE_4

LIBRARY = library_files()


def codec(name: str) -> typed.Codec:
    return check_program(parse(LIBRARY[name].read_text(encoding="utf-8"), f"{name}.cll"))


def packed(name: str) -> list[str]:
    return [f"{item.type}{' counted' * item.counted}" for item in codec(name).payload]


def test_all_are_there() -> None:
    of_the_paper = {"onebit", "tbq", "terngrad", "dgc", "graddrop"}
    others = {"powersgd", "adacomp", "threelc", "efsignsgd", "topk", "qsgd", "minmax_uint8", "int8", "int4", "fp8"}
    assert set(LIBRARY) == of_the_paper | others | {
        "topkc",
        "thc",
        "randomk",
        "ternary",
        "sparseloco",
        "rotated",
        "lossless",
    }


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_each_is_a_whole_codec(name: str) -> None:
    assert codec(name).decode is not None
    assert LIBRARY[name].read_text(encoding="utf-8").startswith(f"// {name}")


@pytest.mark.parametrize(
    ("name", "items"),
    [
        # As casync_core's hand-written codecs have it: two floats, then the codes.
        ("onebit", ["float", "float", "uint1* of gradient.size elements"]),
        ("terngrad", ["float", "float", "uint<params.bits>* of gradient.size elements"]),
        ("tbq", ["uint2* of gradient.size elements"]),
        ("dgc", ["int32* of an unknown number of elements counted", "float* of an unknown number of elements"]),
        ("powersgd", ["float** of cols x r"]),
        ("threelc", ["float", "uint8* of an unknown number of elements counted"]),
        ("efsignsgd", ["float", "uint1* of gradient.size elements"]),
        ("minmax_uint8", ["float", "float", "uint8* of gradient.size elements"]),
        ("int4", ["float", "uint4* of gradient.size elements"]),
        ("ternary", ["float", "uint2* of gradient.size elements"]),
        (
            "sparseloco",
            ["float"] * 4 + [f"uint{bits}* of min(params.k, size) elements" for bits in (8, 4, 2)],
        ),
    ],
)
def test_payloads(name: str, items: list[str]) -> None:
    assert packed(name) == items


def test_units() -> None:
    assert codec("onebit").properties.unit_rows == (256, 4096)
    assert codec("powersgd").properties.unit is None
    for name, text in (("terngrad", "4096"), ("adacomp", "((1048576 / params.bin) * params.bin)")):
        unit = codec(name).properties.unit
        assert unit is not None and unit.text == text


def test_powersgd_has_two_rounds_and_keeps_M_between_them() -> None:
    powersgd = codec("powersgd")
    first, second = powersgd.encode.rounds
    assert powersgd.properties.rounds == ("reduce(mean)", "reduce(mean)")
    assert first.ends is not None and (first.ends.variable, str(first.ends.type)) == ("P", "float** of rows x r")
    assert second.live == ("M",) and powersgd.kept == ("P",)


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("dgc", {"u": True, "v": True}),
        ("adacomp", {"residual": True}),
        ("powersgd", {"Q": False}),  # what decode assigns is the same everywhere
        ("tbq", {"tau": False}),  # and so is the mean that init agrees on
    ],
)
def test_states_know_whether_ranks_differ(name: str, states: dict[str, bool]) -> None:
    assert {state.name: state.local for state in codec(name).states} == states


def test_feedback() -> None:
    kinds = {name: codec(name).properties.feedback for name in LIBRARY}
    assert {name for name, kind in kinds.items() if kind == "own"} == {"dgc", "adacomp"}
    assert {name for name, kind in kinds.items() if kind == "none"} == {
        "terngrad",
        "ternary",
        "rotated",
        "lossless",
        "qsgd",
        "minmax_uint8",
        "int8",
        "fp8",
    }


def test_rounding_with_a_draw_is_one_thing() -> None:
    (function,) = [function for function in codec("terngrad").functions if function.name == "floatToUint"]
    returned = function.body[-1]
    assert isinstance(returned, typed.Return)
    (value,) = returned.values
    assert isinstance(value, typed.Convert) and isinstance(value.operand, typed.StochasticFloor)
    assert value.operand.drawing == typed.Drawing(0, shared=False)


def test_table_5() -> None:
    counts = {name: count_lines(parse(path.read_text(encoding="utf-8"))) for name, path in LIBRARY.items()}
    assert {name for name, limit in PAPER.items() if not counts[name].within(limit)} == set()
    lines = table(counts.items())
    assert len(lines) == 1 + len(LIBRARY) and not any("EXCEEDED" in line for line in lines)


def calls(node: tree.Node) -> set[str]:
    found = {part.function for part in tree.walk(node) if isinstance(part, (tree.Call, tree.Draw))}
    return found & set(OPERATORS)


def test_each_operator_serves_two_algorithms_or_is_in_table_4() -> None:
    used: dict[str, set[str]] = {name: set() for name in OPERATORS}
    for name, path in LIBRARY.items():
        for item in parse(path.read_text(encoding="utf-8")).items:
            for called in calls(item):
                used[called].add(name)
    for operator in OPERATORS.values():
        if operator.origin != (TABLE_4,):
            assert len(operator.origin) >= 2, operator.name
            ours = {name for name in operator.origin if name in LIBRARY}
            assert ours <= used[operator.name], operator.name
            assert used[operator.name], operator.name

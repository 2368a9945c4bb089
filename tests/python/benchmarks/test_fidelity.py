"""The tables of losses in the manual are those of the figures, and their intervals are Student's."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.fidelity import page
from benchmarks.fidelity.methods import BASELINE

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("file", "group", "task"),
    [
        ("send_less_often", "rounds", "text"),
        ("choosing", "codecs", "text"),
        ("choosing", "optimizers", "digits"),
        ("covap", "covap", "text"),
        ("covap", "covap", "digits"),
    ],
)
def test_the_page_has_the_figures(file: str, group: str, task: str) -> None:
    kept = json.loads((ROOT / "docs" / "figures" / "fidelity.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / f"{file}.md").read_text(encoding="utf-8")
    table = page.table_of(page.losses_of(kept[task]), group)
    assert page.written(text, f"fidelity {group} {task}", table) == text, (
        "python -m benchmarks.fidelity --task TASK --group GROUP --page FILE"
    )


def test_differences_are_paired() -> None:
    """Of 1, 2 and 3 % with a standard deviation of 1 %: Student's quantile for two degrees of freedom is 4.303."""
    mean, half = page.compared({0: 1.01, 1: 2.04, 2: 4.12}, {0: 1.0, 1: 2.0, 2: 4.0, 3: 9.0})
    assert mean == pytest.approx(0.02)
    assert half == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)
    mean, half = page.compared({0: 1.1}, {0: 1.0})
    assert mean == pytest.approx(0.1) and math.isnan(half)


def test_ways_without_a_training_have_no_row() -> None:
    table = page.markdown({BASELINE: {0: 2.0}, "LocalSGD 8": {0: 2.1}}, ["LocalSGD 8", "DiLoCo 32"])
    assert table.splitlines()[2:] == [f"| {BASELINE} | 1 | 2.000 | +0.0 % |", "| LocalSGD 8 | 1 | 2.100 | +5.0 % |"]

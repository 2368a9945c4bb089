"""The tables of saved plans, lists of phases and covap's steps, and that the manual has them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fidelity import page
from benchmarks.whole_models import tables
from benchmarks.whole_models.contenders import AGAIN, ALONE

ROOT = Path(__file__).parents[3]


def test_the_page_has_the_figures() -> None:
    kept = json.loads((ROOT / "docs/figures/whole_models.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for what, table in tables.of(kept).items():
        assert page.written(text, f"whole models {what}", table) == text, (
            "python -m benchmarks.whole_models show --page docs/benchmarks.md"
        )


def test_a_prediction_stands_beside_the_median() -> None:
    seconds = {"auto": [0.1, 0.3, 0.2], "none": [1.0], AGAIN: [1.1]}
    found = {"vgg16, 1gbit, 2 a host": {"seconds": seconds, "predicted": {"auto": 0.15}, "interval": 1}}
    rows = tables.of({"saved": found})["saved"].splitlines()
    assert rows[2:] == [
        "| vgg16, 1gbit, 2 a host | auto | 200 | 150 | -25% |  |",
        "| vgg16, 1gbit, 2 a host | none | 1000 |  |  | 10.0% |",
    ]


def test_what_is_not_hidden_is_a_part_of_the_step_without_communication() -> None:
    at = {"seconds": {ALONE: [0.1], "covap(none)": [0.104], "covap(none, interval=2)": [0.2]}, "interval": 2}
    rows = tables.of({"covap": {"1gbit": {"ratios": {"1.5": at}}}})["covap"].splitlines()
    assert rows[2:] == ["| 1.5 | 2 | 100 | 104 | 4.0% |"]

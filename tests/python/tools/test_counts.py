"""The gate on counts: what it takes for more than before, and what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3] / "tools" / "counts.py"
spec = importlib.util.spec_from_file_location("counts", SOURCE)
assert spec is not None and spec.loader is not None
counts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counts)

WAS = {"large": {"messages": 100.0, "instructions": 1e6}, "small": {"messages": 10.0}}


def test_a_step_is_the_difference_of_two_runs() -> None:
    assert counts.of_a_step({"messages": 30}, {"messages": 130}) == {"messages": 10.0}


def test_three_percent_more_is_a_failure_and_less_is_none() -> None:
    same = {"large": {"messages": 103.0, "instructions": 1.03e6}, "small": {"messages": 1.0}}
    assert counts.grown(WAS, same) == []
    more = {"large": {"messages": 104.0, "instructions": 1e6}, "small": {"messages": 10.0}}
    assert counts.grown(WAS, more) == ["large: messages of a step: 104.0, the figure is 100.0"]


def test_a_case_that_is_gone_is_a_failure_and_what_was_not_counted_is_none() -> None:
    assert counts.grown(WAS, {"large": WAS["large"]}) == ["small: no longer counted"]
    assert counts.grown(WAS, {"large": {"messages": 100.0}, "small": {"messages": 10.0, "turns": 5.0}}) == []


def test_a_change_of_the_figures_says_old_and_new() -> None:
    now = {"large": {"messages": 90.0, "instructions": 1e6}, "small": {"messages": 10.0}}
    assert counts.changes(WAS, now) == ["large: messages 100.0 -> 90.0"]

"""Composed times: steps to a loss from curves, and how the steps of each way are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fidelity import page
from benchmarks.fidelity.methods import BASELINE, GROUPS, METHODS
from benchmarks.time_to_accuracy.__main__ import FIDELITY, FIGURES, MARK, README_LINK, README_WAYS
from benchmarks.time_to_accuracy.composed import (
    Composed,
    composed,
    in_words,
    links_of,
    markdown,
    steps_to,
    times_of,
    words_of,
)


def test_steps_to_a_loss_lie_between_two_points_of_the_mean_curve() -> None:
    curves = [[[100, 3.0], [200, 2.0], [300, 1.0]], [[100, 3.0], [200, 2.4], [300, 1.4]]]
    assert steps_to(curves, 2.2) == 200
    assert steps_to(curves, 1.7) == pytest.approx(250)
    assert steps_to(curves, 3.5) == 100
    assert steps_to(curves, 1.0) is None


def test_a_loss_that_rises_again_was_reached() -> None:
    assert steps_to([[[10, 2.0], [20, 1.0], [30, 5.0]]], 1.0) == 20


def test_composed_are_the_ways_that_both_benchmarks_know() -> None:
    def run(last: float) -> dict[str, object]:
        return {"loss": last, "curve": [[10, 4.0], [20, last]]}

    fidelity = {
        BASELINE: {"0": run(2.0), "1": run(2.0)},
        "DiLoCo 32": {"0": run(1.0)},
        "LocalSGD 8": {"0": run(9.0)},
    }
    seconds = {BASELINE: {"seconds": 3.0}, "LocalSGD 8": {"seconds": 1.0}}
    found = composed(fidelity, seconds, 0.01)
    assert found.keys() == {BASELINE, "LocalSGD 8"} and found["LocalSGD 8"] == Composed(None, 1.0, None)
    assert found[BASELINE].steps == pytest.approx(19.9)
    assert found[BASELINE].total == pytest.approx(59.7)


@pytest.mark.parametrize(
    ("name", "first"), [("DiLoCo 32 after 160 steps", 160), ("every step, powersgd(rank=4, start_step=100)", 100)]
)
def test_steps_of_a_warm_up_take_as_long_as_those_of_the_baseline(name: str, first: int) -> None:
    run = {"loss": 2.0, "curve": [[100, 4.0], [200, 2.0]]}
    seconds = {BASELINE: {"seconds": 3.0}, name: {"seconds": 1.0}}
    found = composed({BASELINE: {"0": run}, name: {"0": run}}, seconds, 0.0)
    assert found[name] == Composed(200, 1.0, first * 3.0 + (200 - first) * 1.0)
    words, _ = words_of(METHODS[name], 25e6, 0.1)
    assert not any("start_step=" in word and "start_step=0)" not in word for word in words)


CURVES, LINKS = json.loads(FIDELITY.read_text())["text"], links_of(json.loads(FIGURES.read_text()))


@pytest.mark.parametrize(("file", "group"), [("send_less_often", "rounds"), ("choosing", "codecs"), ("covap", "covap")])
def test_the_page_has_the_figures(file: str, group: str) -> None:
    text = Path(f"docs/{file}.md").read_text()
    table = markdown(times_of(CURVES, LINKS, 0.05, [BASELINE, *GROUPS[group]]))
    assert page.written(text, f"{MARK} {group}", table) == text, (
        "python -m benchmarks.time_to_accuracy show --within 0.05 --group GROUP --page FILE"
    )


def test_the_readme_says_what_the_figures_say() -> None:
    text = Path("README.md").read_text()
    words = in_words(times_of(CURVES, LINKS, 0.05, README_WAYS), README_LINK, 0.05)
    assert page.written(text, MARK, words) == text, "python -m benchmarks.time_to_accuracy show --within 0.05 --readme"


def test_a_way_that_one_link_lacks_has_empty_cells() -> None:
    one = {BASELINE: Composed(10, 2.0, 3600.0), "DiLoCo 32": Composed(None, 1.0, None)}
    lines = markdown({"a": one, "b": {BASELINE: one[BASELINE]}}).splitlines()
    assert lines[2] == f"| {BASELINE} | 10 | 2.000 | 1.00 | 1.000 | 2.000 | 1.00 | 1.000 |"
    assert lines[3] == "| DiLoCo 32 | never | 1.000 |  |  |  |  |  |"


@pytest.mark.parametrize("name", METHODS)
def test_each_way_has_steps_that_can_be_measured(name: str) -> None:
    words, steps = words_of(METHODS[name], 25e6, 0.1)
    (contender,) = (word for word in words if word.startswith("--contender="))
    assert contender.startswith(
        ("--contender=every:", "--contender=hook:", "--contender=blocking:", "--contender=streaming:")
    )
    assert steps == METHODS[name].every or (METHODS[name].every == 0 and steps > 1)

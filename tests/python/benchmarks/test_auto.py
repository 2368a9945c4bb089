"""The comparison of `auto` with its candidates: what is measured, for how long, and what the figures say."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.auto import verdicts
from benchmarks.auto.cases import CODECS, LINKS, RANKS, Case, cases, rounds_in, share_of, turns_of

CASE = Case("small", "1gbit", ("onebit", "adacomp"))
PLENTY = 1e12


def plan(predicted_s: float = 0.0, measured_s: float = 0.0, reason: str = "") -> dict[str, Any]:
    return {"predicted_s": predicted_s, "measured_s": measured_s, "reason": reason}


def figures(**steps: float) -> dict[str, Any]:
    """Steps by label; `none` is 1 s, and once more 1.02 s."""
    seconds = {"none": 1.0, "none again": 1.02, "fp16": 2.0, "onebit": 3.0, "adacomp": 3.0, **steps}
    reason = "compared, none 1000 ms a step, fp16 2000 ms: none stays; measured, the step 900 ms, 950 ms with none"
    plans = {label: [plan(reason=reason)] for label in seconds if label.startswith("auto")}
    return {"seconds": {label: [2 * step, step, step] for label, step in seconds.items()}, "plans": plans}


def test_auto_may_be_slower_than_the_best_by_the_noise_and_three_percent():
    assert verdicts.spread_of(figures()) == pytest.approx(0.02)
    best = 1.02  # the median of 1, 1, 2 and 1.02, 1.02, 2.04
    held = {step: verdicts.judge(CASE, figures(auto=step))[0].holds for step in (best * 1.049, best * 1.051)}
    assert list(held.values()) == [True, False]


def test_auto_is_held_against_onebit_too():
    judged = verdicts.judge(CASE, figures(auto=0.9, onebit=0.8))[0]
    assert judged.against_plain < 1 and not judged.holds


def test_an_auto_with_a_codec_is_held_against_that_codec_too():
    steps = {"auto": 1.0, "adacomp": 0.5}
    held = {step: verdicts.judge(CASE, figures(**steps, **{"auto(adacomp)": step}))[1] for step in (0.549, 0.551)}
    assert [one.holds for one in held.values()] == [True, False]
    assert held[0.551].against_candidates == pytest.approx(1.102)
    assert held[0.551].against_plain == pytest.approx(0.551 / 1.02, rel=0.02)


def test_what_stayed_and_the_predicted_step_are_those_of_the_plans():
    judged = verdicts.judge(CASE, figures(auto=1.0))[0]
    assert (judged.stayed, judged.predicted_s) == ("none", 0.9)
    assert verdicts.step_errors([judged]) == [pytest.approx(0.1)]
    assert verdicts.row(judged) == ("auto", "none", "1000 ms", "900 ms", "0.980", "0.980", "holds")


def test_an_auto_that_has_not_settled_is_missed():
    judged = verdicts.judge(CASE, figures(auto=1.0))[1]
    assert not judged.holds and verdicts.step_errors([judged]) == []
    assert verdicts.row(judged)[:2] == ("auto(adacomp)", "not settled in time")
    assert len(verdicts.row(judged)) == len(verdicts.COLUMNS)


def test_predictions_of_gradients_count_where_both_times_are_known():
    found = {"plans": {"auto": [plan(1.0, 2.0), plan(3.0, 2.0), plan(0.0, 2.0), plan(1.0, 0.0)]}}
    assert verdicts.gradient_errors(found) == [0.5, 0.5]


def test_each_codec_takes_turns_alone_and_in_an_auto():
    labels = Case("small", "host", CODECS).contenders()
    assert len(labels) == 4 + 2 * len(CODECS) - 1
    assert "auto(onebit)" not in labels, "auto is that"
    assert labels["auto(terngrad(bits=2))"] == "auto(fp16, terngrad(bits=2))"
    assert Case("small", "host", CODECS).candidates("auto(terngrad(bits=2))") == ["none", "fp16", "terngrad(bits=2)"]
    assert CASE.candidates("auto") == ["none", "fp16", "onebit"]


def test_the_largest_model_is_measured_over_one_link_only():
    found = cases(["small", "vgg19"], LINKS, CODECS, PLENTY)
    assert [(case.link, case.codecs) for case in found if case.model == "vgg19"] == [("1gbit", ("onebit",))]
    assert [case.link for case in found if case.model == "small"] == list(LINKS)


def test_codecs_whose_residuals_do_not_fit_together_have_jobs_of_their_own():
    bert = Case("bert-base", "1gbit", ()).gradient_bytes
    two = RANKS * (1.4 * 6 * bert + 0.6e9)
    parts = [case.codecs for case in cases(["bert-base"], ["1gbit"], CODECS, two)]
    assert parts == [CODECS[::2], CODECS[1::2]]
    assert [case.codecs for case in cases(["bert-base"], ["1gbit"], CODECS, PLENTY)] == [CODECS]


def test_shares_use_up_the_time_and_no_more():
    waiting = cases(["small", "resnet50"], LINKS, CODECS, PLENTY)
    left = 600.0
    for number, case in enumerate(waiting):
        share = share_of(waiting[number:], left)
        assert share > 0, case
        left -= share
    assert left == pytest.approx(0)
    assert share_of(waiting, 600) < share_of(waiting[4:], 600), "100 MiB takes longer than 25 MiB"


def test_rounds_are_as_many_as_fit_within_limits():
    assert rounds_in(50.0, 10.0) == 5
    assert rounds_in(-1.0, 10.0) == 2, "a median of fewer than three says nothing"
    assert rounds_in(1e6, 1.0) == 15


def test_short_steps_have_more_turns():
    assert [turns_of(step, 1.0) for step in (1.0, 0.6, 0.5, 0.2, 0.1, 0.001)] == [1, 1, 1, 2, 5, 5]

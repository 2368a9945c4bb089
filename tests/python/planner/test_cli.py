"""`casync plan`: what it prints for a file, and how it ends for one that is none."""

from __future__ import annotations

import pytest

from casync.cli import COMMANDS, main
from casync.plan.plans import GradientPlan, write_plans
from casync.plan.show import explanations, summary, table

PLANS = {
    "conv1.weight": GradientPlan(
        "ps", "terngrad(bits=2)", 16, 2, 1, "as asked: terngrad(bits=2) 4.18 ms (none 52.8 ms)"
    ),
    "fc.bias": GradientPlan("direct", "none", 1, 0, 1, "under 4096 elements nothing is compressed"),
    "fc.weight": GradientPlan(
        "ps",
        "terngrad(bits=2)",
        4,
        0,
        1,
        predicted_s=4.184e-3,
        measured_s=8.368e-3,
        uncompressed_s=0.0528,
        payload_bytes=5 << 18,
        measured_inter_s_per_byte=8.1e-9,
        measured_encode_s_per_byte=2e-10,
    ),
}


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    write_plans(path, PLANS)
    return str(path)


def test_the_list_of_commands_says_what_plan_can_do(plan_file, capsys):
    (summary,) = (command.summary for command in COMMANDS if command.name == "plan")
    verbs = summary.removesuffix(" synchronisation plans").replace(",", "").replace(" and ", " ").split()
    assert [main(["plan", verb, plan_file]) for verb in verbs] == [0] * len(verbs)


def test_table_is_aligned():
    assert table(PLANS) == [
        "gradient      codec              K  topology  first owner  epoch   payload  predicted  measured  uncompressed",
        "conv1.weight  terngrad(bits=2)  16  ps                  2      1         -          -         -             -",
        "fc.bias       none               1  direct              0      1         -          -         -             -",
        "fc.weight     terngrad(bits=2)   4  ps                  0      1  1.25 MiB    4.18 ms   8.37 ms       52.8 ms",
    ]


def test_steps_are_in_the_table_where_a_gradient_waits():
    whole, in_parts = (GradientPlan("ps", "fp16", count, 0, 1, period=4, offset=2) for count in (3, 4))
    plans = {"a": whole, "b": in_parts, "c": GradientPlan()}
    assert [line[:46].rstrip() for line in table(plans)] == [
        "gradient  codec  K  topology  steps",
        "a         fp16   3  ps        s mod 4 = 2",
        "b         fp16   4  ps        all, 1/4 in each",
        "c         none   1  direct    all",
    ]


def test_summary_counts_the_most_frequent_first():
    assert summary(PLANS) == "3 gradients: 2 terngrad(bits=2) over ps, 1 none over direct"
    assert summary({"w": GradientPlan()}) == "1 gradient: 1 none over direct"
    assert summary({}) == "no gradients"


def test_explanations_say_so_when_there_is_no_reason():
    lines = explanations(PLANS)
    assert lines[1] == "fc.bias: none, K=1, direct (flat allgather); under 4096 elements nothing is compressed"
    assert lines[2].endswith(
        "no reason was recorded; it took 8.37 ms, 2 times what was predicted; measured: 8.1 ns/B between hosts, "
        "0.2 ns/B to encode"
    )


def test_what_a_rank_measured_makes_no_other_plan():
    assert GradientPlan(measured_s=1.0) == GradientPlan(measured_s=2.0)


def test_show(plan_file, capsys):
    assert main(["plan", "show", plan_file]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [*table(PLANS), "", summary(PLANS)]


def test_explain_of_some(plan_file, capsys):
    assert main(["plan", "explain", plan_file, "--match", "conv"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("conv1.weight: terngrad(bits=2), K=16, ps (flat alltoall, flat allgather); as asked")


@pytest.mark.parametrize("content", ["", "{}", None])
def test_a_file_that_is_no_plan_ends_with_its_name(tmp_path, capsys, content):
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    assert main(["plan", "show", str(path)]) == 1
    assert "other.json" in capsys.readouterr().err


def test_usage_names_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["plan"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    out = capsys.readouterr().out
    assert "show" in out and "explain" in out

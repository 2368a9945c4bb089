"""`casync simulate`: predictions that follow from bytes and rates."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from dataclasses import replace

import pytest

from benchmarks.coordinator import figures as coordinator
from casync import cli
from casync.bench import planned, simulate
from casync.bench.simulate import gradients_of
from casync.bench.units import parse_rate, parse_seconds
from casync.config.settings import Config
from casync.errors import InvalidArgumentError
from casync.plan.plans import GradientPlan, Plans, write_plans
from support.files import ROOT


def predict(**changes):
    return simulate.predict(gradients_of("20x1000000"), **({"topology": "ps"} | changes))


@pytest.mark.parametrize("topology", ["ps", "ring"])
def test_a_long_step_takes_its_bytes_over_the_rate(topology):
    bound = 1.5 * 80e6 / 125e6  # 2(N-1)/N of 80 MB per direction
    assert bound <= predict(topology=topology)["step_s"] <= 1.25 * bound


def test_compression_shortens_it_and_sends_less():
    plain, onebit = predict(), predict(compression="onebit")
    assert onebit["step_s"] < plain["step_s"] / 5
    assert onebit["sent_bytes"] < plain["sent_bytes"] / 20


def test_payloads_of_lossless_are_as_long_as_is_usual():
    bf16, lossless = predict(compression="bf16"), predict(compression="lossless")
    assert lossless["sent_bytes"] == pytest.approx(bf16["sent_bytes"] * 3 / 4, rel=0.02)
    assert lossless["step_s"] < 0.85 * bf16["step_s"]


def test_codecs_that_begin_late_have_begun():
    late, at_once = (
        simulate.predict([(1024, 1024)] * 4, topology="ps", compression=f"powersgd(rank=4{start})")
        for start in ("", ", start_step=0")
    )
    assert late["step_s"] == at_once["step_s"]
    assert late["sent_bytes"] == pytest.approx(at_once["sent_bytes"], rel=0.01)


@pytest.mark.parametrize("interval", [2, 4, 8])
def test_covap_takes_its_part_of_the_bytes_and_of_the_time(interval):
    plain, covap = predict(), predict(compression=f"covap(none, interval={interval})")
    assert covap["sent_bytes"] == pytest.approx(plain["sent_bytes"] / interval, rel=0.01)
    assert 0.95 * plain["step_s"] < interval * covap["step_s"] < 1.25 * plain["step_s"], "less is under way at a time"
    once, onebit = predict(compression="covap(onebit, interval=1)"), predict(compression="onebit")
    assert once["plans"] == onebit["plans"]
    assert once["step_s"] == pytest.approx(onebit["step_s"], rel=1e-3), "the longer name is sent once"


def test_covap_has_no_interval_before_a_job_has_measured_it():
    with pytest.raises(InvalidArgumentError, match="measures its interval in a job; to simulate it, name one"):
        predict(compression="covap(fp16)")


def test_what_is_sent_during_backward_is_hidden():
    step = predict(backward_s=0.5)["step_s"]
    assert step < predict()["step_s"] + 0.5 * 0.6


def test_plans_are_those_of_a_session():
    """One size of partition by default: the settings', the core's and the command's."""
    size = Config().partition_bytes
    assert predict(topology="ring") == predict(topology="ring", partition_bytes=size)
    assert predict(topology="ring") != predict(topology="ring", partition_bytes=4 * size)
    assert simulate.build_parser().parse_args([]).partition_bytes == size


def test_it_says_what_each_coordinator_costs():
    """As measured on netlab (docs/internals/coordinator.md): the local one within a tenth, the global one within a
    quarter, and slower than that.
    """
    figures = json.loads((ROOT / "docs/figures/coordinator.json").read_text(encoding="utf-8"))
    for network, found in figures["networks"].items():
        simulated = coordinator.simulated(coordinator.NETWORKS[network], found["goodput"])
        for name, kinds in simulated.items():
            for kind, seconds in kinds.items():
                measured = statistics.median(found["seconds"][name][kind])
                assert seconds == pytest.approx(measured, rel=0.1 if kind == "local" else 0.25), (name, kind)
            assert kinds["global"] > kinds["local"]


def test_units():
    assert parse_rate("1gbit") == parse_rate("125MB/s") == 125e6
    assert parse_seconds("50us") == pytest.approx(5e-5)
    for wrong in ("fast", "1 furlong", "0gbit"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_rate(wrong)


def test_gradients_are_models_or_sizes():
    assert gradients_of("2x10,7") == [(10, 1), (10, 1), (7, 1)]
    assert len(gradients_of("resnet50")) == 161
    with pytest.raises(argparse.ArgumentTypeError, match="resnet50"):
        gradients_of("resnet51")


def test_the_command_prints_a_row_per_topology(capsys):
    assert cli.main(["simulate", "--gradients", "5x100000", "--codec", "test_topk(ratio=0.01)"]) == 0
    out = capsys.readouterr().out
    assert out.count(" ms ") == 4  # auto goes directly; PS, ring and two levels carry it, too


@pytest.mark.parametrize("rate", ["1mbit", "8kbit"])
def test_a_slow_link_takes_hours(rate):
    """Without another message for as long."""
    numel = 1_000_000
    step_s = simulate.predict([(numel, 1)], topology="ring", rate=parse_rate(rate))["step_s"]
    assert step_s == pytest.approx(1.5 * 4 * numel / parse_rate(rate), rel=0.3)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--rate", "25", "write a number and one of"),
        ("--rate", "10bit", "at least 8 kbit"),
        ("--latency", "1e30s", "at most 1,000,000 s"),
        ("--workers", "0", "a whole number from 1 on"),
        ("--pool-bytes", "-1", "a whole number from 1 on"),
        ("--seed", "1e9", "a whole number from 1 on"),
        ("--nodes", "1000000", "more than the 4,096"),
        ("--gradients", "0x5", "give from 1 to"),
        ("--gradients", "1x99999999999999", "give from 1 to"),
        ("--cluster", "", "it is not known"),
    ],
)
def test_what_cannot_be_simulated_is_refused(capsys, option, value, says):
    with pytest.raises(SystemExit):
        simulate.main([option, value])
    assert says in capsys.readouterr().err


def test_efficiency_is_left_out_where_nothing_says_what_is_computed(capsys):
    assert simulate.main(["--gradients", "4x10000", "--topology", "ps"]) == 0
    assert "0.00  " not in capsys.readouterr().out.splitlines()[-1].partition("MiB")[2]
    assert simulate.main(["--gradients", "4x10000", "--topology", "ps", "--backward", "1s"]) == 0
    assert " 1.00 " in capsys.readouterr().out


def plan_file(folder, plans, **world):
    path = folder / "plan.json"
    write_plans(path, Plans(plans, **world))
    return str(path)


def test_a_plan_file_says_gradients_and_how_they_go(tmp_path, capsys):
    plan = GradientPlan("ring", "fp16", 8, tensor="float32 (1024, 512, 2)")
    path = plan_file(tmp_path, {"w": plan, "b": replace(plan, codec="onebit")}, host_of=(0, 0, 1, 1, 2, 2))
    found = planned.read(path)
    assert (found.nodes, found.ranks_per_node, found.rate, found.codecs) == (3, 2, None, {})
    assert found.gradients == [(1024, 1024)] * 2
    assert [one["codec"] for one in found.plans] == ["onebit", "fp16"], "backwards: the first is ready first"
    one = {"nodes": 3, "ranks_per_node": 2, "topology": "ring", "compression": "always(fp16)", "partitions": 8}
    alone = simulate.predict([(1024, 1024)], **one)
    planned_step = simulate.predict([(1024, 1024)], nodes=3, ranks_per_node=2, plans=found.plans[1:])
    assert planned_step["step_s"] == alone["step_s"]
    assert simulate.main(["--plan-file", path, "--rate", "10gbit"]) == 0
    out = capsys.readouterr().out
    assert "6 ranks on 3 hosts, 2 gradients of 8.00 MiB" in out
    assert out.count("as planned") == out.count(" ms ") == 1


def test_what_a_job_has_measured_is_taken_from_its_plan_file(tmp_path, capsys):
    plan = GradientPlan(
        "ps", "onebit", 4, tensor="float32 (1000000,)", measured_inter_s_per_byte=1e-7,
        measured_encode_s_per_byte=1e-6, measured_decode_s_per_byte=1e-9,
    )  # fmt: skip
    path = plan_file(tmp_path, {"w": plan}, host_of=(0, 1))
    assert planned.read(path).rate == pytest.approx(1e7)
    slow = [
        simulate.main(["--plan-file", path, *more]) == 0 and capsys.readouterr().out
        for more in ([], ["--rate", "1gbit"])
    ]
    steps = [float(re.search(r"([\d.]+) ms", out)[1]) for out in slow]
    assert steps[0] > steps[1] > 2000, "half of 4 MB, and the sum of the other half, encoded at 1 us a byte"


def test_steps_of_plans_that_go_in_turns_are_averaged_over_a_common_multiple(tmp_path):
    def plan(period):
        return GradientPlan("ring", "none", 4, period=period, tensor="float32 (1000000,)")

    plans = planned.read(plan_file(tmp_path, {"a": plan(2), "b": plan(3)})).plans
    both = simulate.predict([(1_000_000, 1)] * 2, nodes=4, plans=plans)
    whole = simulate.predict([(1_000_000, 1)], nodes=4, topology="ring", partitions=4)
    assert both["sent_bytes"] == pytest.approx(whole["sent_bytes"] * (1 / 2 + 1 / 3), rel=0.02)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ("", "it does not say its tensor"),
        ("float16 (64, 3)", "its tensor is 'float16"),
        ("float32 64", "its tensor is"),
    ],
)
def test_a_plan_that_cannot_be_simulated_is_refused(tmp_path, capsys, tensor, says):
    path = plan_file(tmp_path, {"w": GradientPlan(tensor=tensor)})
    with pytest.raises(SystemExit):
        simulate.main(["--plan-file", path])
    assert says in capsys.readouterr().err
    for wrong in (["--codec", "fp16"], ["--gradients", "vgg19"], ["--topology", "ps"]):
        with pytest.raises(SystemExit):
            simulate.main(["--plan-file", path, *wrong])
        assert "a plan file says gradients, codecs and topologies" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        simulate.main(["--plan-file", str(tmp_path / "none.json")])
    assert "No such file" in capsys.readouterr().err

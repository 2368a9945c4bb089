"""Plans as values and JSON: round trips of anything, refusal of everything else by name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casync._constants import PHASES
from casync.plan.phases import PhaseError, from_phases, to_phases
from casync.plan.plans import GradientPlan, PlanError, Plans, from_json, read_plans, to_json, write_plans

UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text()
TIMES = st.floats(0, allow_infinity=False) | st.integers(0, 2**80)
GRAPH = "graph(1>0 2>0;0>1 0>2)"
PERIODS = st.integers(1, 2**32 - 1)
PLANS = st.builds(
    lambda period, **fields: GradientPlan(period=period, offset=period // 3, **fields),
    topology=st.sampled_from([*PHASES, GRAPH]),
    period=PERIODS,
    init=st.floats(0, 1),
    ascend_steps=st.integers(1, 2**32 - 1),
    ascend_range=st.floats(0, 1, exclude_min=True),
    priority=st.none() | st.integers(-(2**31), 2**31 - 1),
    on_host=st.booleans(),
    tensor=TEXT,
    codec=st.text(min_size=1),
    partitions=st.integers(1, 2**32 - 1),
    first_owner=UINT32,
    epoch=UINT32,
    reason=TEXT,
    until=UINT32,
    payload_bytes=st.integers(0, 2**64 - 1),
    **{field.name: TIMES for field in fields(GradientPlan) if field.name.endswith(("_s", "_per_byte"))},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=12,
)
ONEBIT = GradientPlan("ps", "onebit", 4, 2, 1, "auto: onebit 1.52 ms (none 9.04 ms); ps, 4 partitions of 1 MiB")


def document(version: int = 1, **fields: object) -> str:
    return json.dumps({"format": "casync-plan", "version": version, "gradients": {"w": fields}})


def phase(scope: str = "flat", routine: str = "allgather", **fields: object) -> dict[str, object]:
    return {"scope": scope, "routine": routine, **fields}


@given(st.dictionaries(TEXT, PLANS, max_size=8))
def test_every_plan_survives_json(plans):
    assert from_json(to_json(plans)) == plans
    assert list(from_json(to_json(plans))) == list(plans)


@given(TEXT)
def test_any_text_is_a_plan_or_a_plan_error(text):
    try:
        from_json(text)
    except PlanError:
        pass


@given(JSON)
def test_any_json_is_a_plan_or_a_plan_error(value):
    plan = {"format": "casync-plan", "version": 2}
    for content in (
        value,
        plan | {"gradients": value},
        plan | {"gradients": {}, "world": value},
        plan | {"gradients": {"w": {"phases": value}}},
        plan | {"gradients": {"w": {"phases": [value]}}},
        plan | {"gradients": {"w": {"when": value}}},
    ):
        try:
            from_json(json.dumps(content))
        except PlanError:
            pass


@given(
    st.sampled_from(sorted(set(asdict(ONEBIT)) - {"period", "offset", "init", "ascend_steps", "ascend_range"})), JSON
)
def test_any_value_of_a_field_is_kept_or_refused(field, value):
    try:
        plan = from_json(document(2, **{field: value}))["w"]
    except PlanError as error:
        assert "'w'" in str(error)
    else:
        assert getattr(plan, field) == value


def test_fields_left_out_have_their_defaults():
    assert from_json(document()) == from_json(document(2)) == {"w": GradientPlan()}


@pytest.mark.parametrize("topology", PHASES)
def test_a_topology_is_a_name_for_phases(topology):
    for on_host in (False, True):
        plan = {"topology": topology, "codec": "onebit", "partitions": 3, "on_host": on_host}
        assert from_phases(to_phases(**plan)) == plan


def test_phases_are_what_the_paper_says():
    between = [phase("inter", "alltoall", codec="onebit"), phase("inter", "allgather", codec="onebit")]
    two_levels = [phase("intra", "reduce_scatter"), *between, phase("intra", "allgather")]
    assert from_json(document(2, phases=two_levels))["w"] == GradientPlan("two_level(ps)", "onebit")
    ring = [phase("flat", "reduce_scatter", partitions=4), phase("flat", "allgather", partitions=4)]
    assert from_json(document(2, phases=ring))["w"] == GradientPlan("ring", partitions=4)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ([], "list"),
        ({}, "list"),
        ([{"scope": "flat"}], "phase 0"),
        ([phase(rounds=2)], "rounds"),
        ([phase("flat", "reduce_scatter")], "flat reduce_scatter, flat allgather (ring)"),
        ([phase("inter", "allgather")], "intra reduce_scatter, inter allgather, intra allgather (two_level(direct))"),
        ([phase("flat", "alltoall", codec="onebit"), phase()], "codec must be the same"),
        ([phase("flat", "alltoall", partitions=2), phase()], "partitions must be the same"),
        ([phase("flat", "alltoall", encode_on="host"), phase()], "encode_on and decode_on must be the same"),
        ([phase(encode_on="device")], "'device'"),
        ([phase(partitions="2")], "'2'"),
        ([phase(codec=1)], "codec must be text"),
        ([phase("intra", "reduce_scatter", codec="onebit")], "codec must be none"),
        ([phase("intra", "reduce_scatter", encode_on="host")], "no encode_on"),
    ],
)
def test_phases_that_nothing_executes_are_refused_by_name(phases, said):
    with pytest.raises(PhaseError) as caught:
        from_phases(phases)
    assert said in str(caught.value)
    with pytest.raises(PlanError, match="'w'"):
        from_json(document(2, phases=phases))


def test_what_would_be_ignored_is_refused():
    for content, said in (
        ({"phases": [phase()], "topology": "ps"}, "topology beside them"),
        ({"when": {"period": 2, "steps": 3}}, "when"),
        ({"when": {"period": 2, "offset": 2}}, "less than period"),
        ({"when": {"period": 2, "init": 1.5}}, "init must be a number from 0 to 1"),
        ({"when": {"period": 2, "init": "half"}}, "init must be a number from 0 to 1"),
        ({"when": {"period": 2, "ascend_range": 0}}, "ascend_range must be a number above 0 to 1"),
        ({"when": {"period": 2, "ascend_steps": 0}}, "ascend_steps must be an integer from 1"),
        ({"period": 2}, "unknown field 'period'"),
    ):
        with pytest.raises(PlanError, match=said):
            from_json(document(2, **content))
    for field in ("phases", "when", "tensor", "on_host", "period", "priority"):
        with pytest.raises(PlanError, match=f"unknown field '{field}'"):
            from_json(document(1, **{field: 1}))
    with pytest.raises(PlanError, match="unknown field 'hosts'"):
        from_json(json.dumps({"format": "casync-plan", "version": 2, "hosts": [0], "gradients": {}}))
    with pytest.raises(PlanError, match="unknown field 'world'"):
        from_json(json.dumps({"format": "casync-plan", "version": 1, "world": {"host_of": [0]}, "gradients": {}}))


def test_a_file_says_what_world_it_is_for():
    assert from_json(to_json(Plans({"w": ONEBIT}, (0, 0, 1)))).host_of == (0, 0, 1)
    assert from_json(to_json({"w": ONEBIT})).host_of == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"topology": "star"}, "two_level"),
        ({"codec": ""}, "none"),
        ({"partitions": 0}, "partitions"),
        ({"partitions": 1.5}, "1.5"),
        ({"partitions": True}, "True"),
        ({"first_owner": -1}, "first_owner"),
        ({"epoch": 2**32}, "epoch"),
        ({"partition": 4}, "partition"),
        ({"predicted_s": -1.0}, "predicted_s"),
        ({"payload_bytes": 1.5}, "payload_bytes"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields, said):
    with pytest.raises(PlanError, match="'w'") as caught:
        from_json(document(**fields))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other"}', "[" * 100_000])
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(PlanError):
        from_json(text)


def test_a_later_version_is_refused():
    with pytest.raises(PlanError, match="version 4"):
        from_json(json.dumps({"format": "casync-plan", "version": 4, "gradients": {}}))


def test_plans_are_values():
    with pytest.raises(AttributeError):
        ONEBIT.codec = "none"
    with pytest.raises(PlanError):
        replace(ONEBIT, partitions=0)


def test_files_round_trip_and_replace_the_old_one(tmp_path):
    path = tmp_path / "plan.json"
    write_plans(path, {"old": GradientPlan()})
    write_plans(path, {"w": ONEBIT, "größe": GradientPlan()})
    assert read_plans(path) == {"w": ONEBIT, "größe": GradientPlan()}
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_plans(path, {"w": ONEBIT})

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_plans(path, {"other": ONEBIT})
    assert read_plans(path) == {"w": ONEBIT}
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "plan.json"
    for content in (b"{}", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(PlanError, match="plan.json"):
            read_plans(path)


PAGE = (Path(__file__).parents[3] / "docs" / "plans.md").read_text()


def test_the_page_has_every_list_of_phases_with_its_name():
    rows = re.findall(r"^\| `([\w()]+)` \| ((?:(?:flat|intra|inter) \w+(?:, )?)+) \|$", PAGE, re.MULTILINE)
    assert dict(rows) == {name: ", ".join(" ".join(phase) for phase in way) for name, way in PHASES.items()}


def test_the_files_on_the_page_are_plans():
    files = [text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "casync-plan" in text]
    (plans,) = map(from_json, files)
    assert plans["allreduce.fc.weight"].topology == "two_level(ring)"

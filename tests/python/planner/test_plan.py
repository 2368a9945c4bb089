"""Plans as values and JSON: round trips of anything, refusal of everything else by name."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casync.plan import TOPOLOGIES, GradientPlan, PlanError, from_json, read_plans, to_json, write_plans

UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text()
TIMES = st.floats(0, allow_infinity=False) | st.integers(0, 2**80)
PLANS = st.builds(
    GradientPlan,
    topology=st.sampled_from(TOPOLOGIES),
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


def document(**fields: object) -> str:
    return json.dumps({"format": "casync-plan", "version": 1, "gradients": {"w": fields}})


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
    for content in (value, {"format": "casync-plan", "version": 1, "gradients": value}):
        try:
            from_json(json.dumps(content))
        except PlanError:
            pass


@given(st.sampled_from(sorted(asdict(ONEBIT))), JSON)
def test_any_value_of_a_field_is_kept_or_refused(field, value):
    try:
        plan = from_json(document(**{field: value}))["w"]
    except PlanError as error:
        assert "'w'" in str(error)
    else:
        assert getattr(plan, field) == value


def test_fields_left_out_have_their_defaults():
    assert from_json(document()) == {"w": GradientPlan()}


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
    with pytest.raises(PlanError, match="version 2"):
        from_json(json.dumps({"format": "casync-plan", "version": 2, "gradients": {}}))


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

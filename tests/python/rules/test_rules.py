"""Codecs by name and shape: which rule decides, which rules have no effect, and what cannot be meant."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from casync.config.kinds import Compression
from casync.config.rules import Rules, read_table
from casync.config.settings import Config
from casync.errors import InvalidArgumentError

# Few letters, so that patterns often match and often meet.
NAMES = st.text("ab.", min_size=1, max_size=6)
PATTERNS = st.text("ab.*?", min_size=1, max_size=5).filter(lambda pattern: pattern != "*")
TABLES = st.lists(PATTERNS, max_size=5, unique=True).map(lambda some: {p: f"codec{i}" for i, p in enumerate(some)})


def matches(pattern: str, name: str) -> bool:
    """Letter by letter, from the definition of `*` and `?`."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(matches(pattern[1:], name[i:]) for i in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and matches(pattern[1:], name[1:])


def deciding(table: dict[str, str], name: str) -> str | None:
    return next((pattern for pattern in table if matches(pattern, name)), None)


@given(TABLES, NAMES, st.booleans())
def test_the_first_pattern_that_matches_decides(table, name, is_complete):
    if is_complete or not table:
        table["*"] = "last"
    rules = Rules.of(table)
    pattern = deciding(table, name)
    if pattern is None:
        with pytest.raises(InvalidArgumentError) as caught:
            rules.codec_of(name)
        for text in (f"parameter {name} ", json.dumps(table), '"*"'):
            assert text in str(caught.value)
    else:
        expected = table[pattern]
        assert rules.codec_of(name) == (f"always({expected})" if pattern == name else expected)


@given(TABLES, st.lists(NAMES, max_size=6, unique=True))
def test_idle_patterns_decide_for_nobody_and_say_why(table, names):
    idle = Rules.of({**table, "*": "last"}).idle(dict.fromkeys(names))
    decide = {deciding(table, name) for name in names}
    assert set(idle) - {"*"} == set(table) - decide
    assert ("*" in idle) == (not names)
    for pattern, why in idle.items():
        assert ("earlier" in why) == any(matches(pattern, name) for name in names)


@pytest.mark.parametrize(("pattern", "name", "expected"), [
    ("*.bias", "layer1.0.bias", "x"), ("*.bias", "bias", None), ("*bias", "bias", "x"),
    ("embed*", "embed.weight", "x"), ("embed*", "model.embed.weight", None), ("Embed*", "embed.weight", None),
    ("layer[12].*", "layer2.weight", "x"), ("layer[!12].*", "layer2.weight", None),
    ("a[0]", "a[0]", "always(x)"), ("a[0]", "a0", "x"),  # a name is itself, whatever its characters
    (r"re:layers\.(0|1)\..*", "layers.1.mlp.weight", "x"), (r"re:layers\.(0|1)\..*", "layers.2.weight", None),
    ("re:weight", "head.weight", None), ("re:weight", "weight", "x"),  # of the whole name
])  # fmt: skip
def test_patterns(pattern, name, expected):
    rules = Rules.of({pattern: "x", "*": "other"})
    assert rules.codec_of(name) == (expected or "other")


# --- by shape --------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
FIELDS = st.sampled_from(["numel", "ndim", "shape[0]", "shape[2]", "shape[-1]"])
CONDITIONS = st.tuples(FIELDS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.integers(0, 20))


def holds(condition: tuple[str, str, int], shape: tuple[int, ...]) -> bool:
    """As Python computes it, of NumPy's array of that shape."""
    field, compared, number = condition
    try:
        return bool(eval(f"array.{field.replace('numel', 'size')} {compared} {number}", {"array": np.empty(shape)}))
    except IndexError:
        return False


@given(st.lists(CONDITIONS, min_size=1, max_size=3), NAMES, SHAPES)
def test_conditions_are_those_of_an_array(conditions, name, shape):
    where = " and ".join(f"{field}{compared} {number}" for field, compared, number in conditions)
    rules = Rules.of({f"a* where {where}": "x", "*": "other"})
    expected = name.startswith("a") and all(holds(one, shape) for one in conditions)
    assert rules.codec_of(name, shape) == ("x" if expected else "other")
    assert (f"a* where {where}" in rules.idle({name: shape})) != expected


def test_a_shape_that_is_not_known_is_asked_for_only_where_it_decides():
    rules = Rules.of(
        {"head*": "none", "*.weight where numel >= 1_000_000": "onebit", "re:.*bias where ndim==1": "fp16"}
    )
    assert rules.codec_of("head.weight") == "none"
    with pytest.raises(InvalidArgumentError, match=r"'\*.weight where numel >= 1_000_000' .* body.weight has none yet"):
        rules.codec_of("body.weight")
    rules.check("body.weight")  # it may be long enough
    assert rules.idle({"body.weight": None, "body.bias": None}) == {"head*": "no parameter has such a name"}
    for shape in ((1000, 999), (999_999,)):
        with pytest.raises(InvalidArgumentError, match="matches no rule"):
            rules.check("body.weight", shape)
    with pytest.raises(InvalidArgumentError, match="parameter other matches no rule"):
        rules.check("other")


@pytest.mark.parametrize("pattern", ["* WHERE ndim == 1", "*\twhere ndim == 1", "a*where ndim == 1", "* where"])
def test_what_is_nearly_a_condition_is_refused(pattern):
    with pytest.raises(InvalidArgumentError, match="has no condition: write ' where ' with a space on both sides"):
        Rules.of({pattern: "x"})


def test_names_with_where_in_them_are_names():
    rules = Rules.of({"nowhere.weight": "x", "where*": "y", "*": "z"})
    assert rules.codec_of("nowhere.weight") == "always(x)" and rules.codec_of("where.bias") == "y"


def test_conditions_on_more_than_the_number_of_elements():
    assert Rules.of({"* where numel > 3": "x", "a where numel > 3 and ndim > 1": "y", "*": "z"}).beyond_numel() == [
        "a where numel > 3 and ndim > 1"
    ]


def test_a_name_with_a_condition_is_not_always():
    assert Rules.of({"a where ndim > 0": "x"}).codec_of("a", (3,)) == "x"


def test_idle_conditions_say_so():
    idle = Rules.of({"* where ndim > 3": "x", "a* where ndim > 0": "y", "a where ndim == 1": "z"}).idle({"a": (3,)})
    assert idle == {
        "* where ndim > 3": "no parameter has such a name and shape",
        "a where ndim == 1": "earlier patterns match all that it matches",
    }


@pytest.mark.parametrize("where", [
    "", "numel", "numel > -1", "numel => 3", "size > 3", "ndim > 1 or ndim > 2", "shape > 3", "shape[a] > 3",
    "numel > 1e6", "numel > \u0663", "3 < ndim", "ndim > 1, numel > 3", "ndim > 1 and",
])  # fmt: skip
def test_what_is_no_condition(where):
    with pytest.raises(InvalidArgumentError, match="is no condition: write numel, ndim or shape"):
        Rules.of({f"* where {where}": "x"})


@pytest.mark.parametrize(("table", "said"), [
    ({}, r'no rule; "\*"'),
    ({"": "none"}, "'' is no pattern"),
    ({"re:(": "none"}, "no regular expression"),
    ({3: "none"}, "3 is no pattern"),
    ({"a": "x", "*": "none", "b": "x", "c": "x"}, r"'b', 'c' has no effect after '\*'.*put '\*' last"),
])  # fmt: skip
def test_tables_that_cannot_be_meant(table, said):
    with pytest.raises(InvalidArgumentError, match=said):
        Rules.of(table)


# --- in the environment ----------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.text()))
def test_a_table_in_json_keeps_its_order(table):
    assert list(read_table(json.dumps(table)).items()) == list(table.items())
    assert Compression().read(" " + json.dumps(table)) == table


def test_a_codec_alone_is_a_codec():
    assert Config.from_environment({"CASYNC_COMPRESSION": "terngrad(bits=4)"}).compression == "terngrad(bits=4)"


@pytest.mark.parametrize(("text", "said"), [
    ("{'*': 'onebit'}", "JSON, e.g. .*double quotes"),
    ('{"*": "onebit"', "JSON"),
    ('{"a": "none", "*": "onebit", "a": "fp16"}', "two rules for 'a'"),
    ('{"*": 3}', "codec of '\\*' is 3"),
    ('{"*": null}', "codec of '\\*' is null"),
    ('{"*": {"a": "none"}}', "must be a string"),
])  # fmt: skip
def test_a_bad_table_names_its_variable(text, said):
    with pytest.raises(InvalidArgumentError, match=f"(?s)CASYNC_COMPRESSION=.*{said}"):
        Config.from_environment({"CASYNC_COMPRESSION": text})


def test_a_table_is_not_for_the_core():
    assert "compression" not in Config(compression={"*": "onebit"}).core_options(0, 1)

"""Codecs by name: each layer goes as its rule says, and as if the whole model went so."""

import logging
import math

import casync.torch as hvd
import pytest
import torch
from torch import nn

from support.replicas import assert_same_everywhere
from support.training import batch_of, make_model, new_session, step

TABLE = {"*.bias": "none", "0.*": hvd.Compression.onebit(), "2.*": "terngrad(bits=4)", "4.weight": "fp16"}
EXPECTED = {"0.weight": "onebit", "2.weight": "terngrad(bits=4)", "4.weight": "fp16"}  # and the biases none


def wrap(model, compression, **arguments):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, topology="ps", **arguments
    )


def after_one_step(compression, rank, settings=None):
    """The parameters after one step of a fresh session, their codecs, bytes sent, and who has a residual."""
    new_session(stall_warning_s=10.0, **(settings or {}))
    model = make_model()
    optimizer = wrap(model, compression)
    step(model, optimizer, batch_of(0, rank))
    state = optimizer.state_dict().get("casync", {"residuals": {}})
    codecs = {name.removeprefix("allreduce."): plan.codec for name, plan in hvd.plans().items()}
    return dict(model.named_parameters()), codecs, hvd.counters()["sent_bytes"], set(state["residuals"])


@pytest.mark.parametrize("from_config", [False, True], ids=["argument", "config"])
def test_each_layer_goes_as_its_rule_says(from_config, rank, size):
    """Bit for bit what it is when the whole model goes so; nothing of one layer's codec reaches another's."""
    given = (hvd.Compression.none, {"compression": TABLE}) if from_config else (TABLE, {})
    mixed, codecs, sent, residuals = after_one_step(given[0], rank, given[1])
    whole = {codec: after_one_step(codec, rank, {"min_numel": 0}) for codec in ("none", *EXPECTED.values())}
    for name, parameter in mixed.items():
        assert torch.equal(parameter, whole[EXPECTED.get(name, "none")][0][name]), name
        assert_same_everywhere(parameter, name)
    if size < 2:
        return
    assert codecs == {name: EXPECTED.get(name, "none") for name in mixed}
    assert residuals == {"0.weight"}, "of these codecs only onebit keeps one"
    assert whole["onebit"][2] < sent < whole["none"][2]
    for name, codec in EXPECTED.items():
        assert not torch.equal(mixed[name], whole["none"][0][name]), f"{codec} changed nothing"


def test_a_rule_in_full_holds_for_small_tensors_and_a_pattern_does_not(rank, size):
    _, codecs, _, residuals = after_one_step(
        {"4.bias": "onebit", "0.bias": "none", "*.bias": "fp16", "4.*": "always(fp16)", "*": "onebit"},
        rank,
    )
    if size > 1:
        assert codecs["4.bias"] == "onebit" and codecs["4.weight"] == "fp16"
        assert codecs["0.bias"] == codecs["2.bias"] == "none" and codecs["0.weight"] == codecs["2.weight"] == "onebit"
        assert residuals == {"4.bias", "0.weight", "2.weight"}
        _, codecs, _, _ = after_one_step({"*.bias": "onebit", "*": "none"}, rank)
        assert set(codecs.values()) == {"none"}


def test_rules_see_the_shapes_of_parameters(rank, size, caplog):
    long = "* where numel >= 4900 and shape[0] > 50"
    table = {"* where ndim == 1": "none", long: "onebit", "* where ndim > 2": "fp16", "*": "bf16"}
    shapes = {name: tuple(parameter.shape) for name, parameter in make_model().named_parameters()}
    wanted = {
        name: "none" if len(shape) == 1 or math.prod(shape) < 4096
        else "onebit" if math.prod(shape) >= 4900 and shape[0] > 50
        else "bf16"
        for name, shape in shapes.items()
    }  # fmt: skip
    assert {"none", "onebit", "bf16"} == set(wanted.values()), shapes
    with caplog.at_level(logging.WARNING, "casync"):
        _, codecs, _, residuals = after_one_step(table, rank)
    said = "'* where ndim > 2', because no parameter has such a name and shape"
    assert [said in record.getMessage() for record in caplog.records] == [True] * (rank == 0)
    if size > 1:
        assert codecs == wanted and residuals == {name for name in wanted if wanted[name] == "onebit"}


def test_rules_about_no_parameter_are_one_warning_on_rank_0(rank, size, caplog):
    with caplog.at_level(logging.WARNING, "casync"):
        wrap(make_model(), {"embed*": "onebit", "*.weight": "fp16", "4.weight": "onebit", "*": "none"})
        wrap(make_model(), TABLE | {"*": "none"})
        wrap(make_model(), "onebit")
    assert len(caplog.records) == (rank == 0)
    for record in caplog.records:
        assert "'embed*', because no parameter has such a name" in record.getMessage()
        assert "'4.weight', because earlier patterns match all that it matches" in record.getMessage()
        assert "6 parameters" in record.getMessage()


def test_parameters_that_come_later_need_a_rule_as_well(rank, size):
    if size < 2:
        pytest.skip("a world of one has no hooks")
    model, later = make_model(), nn.Linear(20, 300)
    optimizer = wrap(model, {"[024].*": "none", "noname.1.0": "onebit"})
    optimizer.add_param_group({"params": list(later.parameters())})
    with pytest.raises(ValueError, match=r"parameter noname\.1\.1 matches no rule"):
        later(torch.ones(1, 20)).sum().backward()
        optimizer.step()

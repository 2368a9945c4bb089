"""LocalSGD and DiLoCo refuse a user's mistakes by name, or tell of them in the log."""

import casync.torch as hvd
import pytest
import torch
from torch import nn

from casync.errors import InvalidArgumentError
from support.local_steps import sgd, train
from support.training import make_model


def test_a_step_before_the_with_is_refused(rank):
    model = make_model()
    optimizer = sgd(model)
    local = hvd.LocalSGD(model, optimizer, sync_every=2)
    with pytest.raises(InvalidArgumentError, match="before the `with` of its LocalSGD"):
        train(model, optimizer, rank, [0])
    with local:
        train(model, optimizer, rank, range(2))
    train(model, optimizer, rank, [2])  # after it steps are the program's own
    with local:
        train(model, optimizer, rank, range(2))


def test_the_inner_optimizer_is_not_the_outer_one_too():
    model = make_model()
    optimizer = sgd(model)
    for outer in (optimizer, [optimizer]):
        with pytest.raises(InvalidArgumentError, match="outer_optimizer is the inner optimizer too"):
            hvd.DiLoCo(model, optimizer, outer, 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"outer_optimizer": "sgd"}, "outer_optimizer='sgd': it must be a torch.optim.Optimizer"),
        ({"num_fragments": [nn.Linear(2, 2)]}, "num_fragments is a list.*in the place of the model"),
        ({"weight": 3.0}, "weight=3.0: it must be a function"),
    ],
)
def test_arguments_of_another_kind(arguments, text):
    model = make_model()
    with pytest.raises(InvalidArgumentError, match=text):
        hvd.DiLoCo(model, sgd(model), sync_every=2, **arguments)


def test_a_with_without_steps_is_told(rank, caplog):
    model = make_model()
    with hvd.LocalSGD(model, sgd(model), sync_every=2):
        train(model, sgd(model), rank, range(2))  # another optimizer
    assert "no step of the optimizer was made within the `with`" in caplog.text


@pytest.mark.parametrize("instead", [True, False])
def test_another_optimizer_in_the_place_of_the_given_one_is_told(rank, caplog, instead):
    model = make_model()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=2):
        train(model, optimizer, rank, [0])
        other = torch.optim.Adam(model.parameters(), lr=0.0)
        for number in range(3):
            train(model, other, rank, [number])
            if not instead:
                train(model, optimizer, rank, [number])
    assert caplog.text.count("another optimizer than those given, Adam, trains the parameters") == instead


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("alike", [True, False])
def test_ranks_that_are_not_apart_are_told(rank, caplog, alike):
    model = make_model()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=2):
        train(model, optimizer, 0 if alike else rank, range(4))
    assert caplog.text.count("not apart in the first round") == (alike and rank == 0)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("codec", "told"),
    [("powersgd(rank=2)", 1000), ("onebit(start_step=3)", 3), ("powersgd(rank=2, start_step=0)", 0), ("auto", 0)],
)
def test_a_codec_that_begins_after_many_rounds_is_told(rank, caplog, codec, told):
    model = make_model()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=2, compression=codec):
        train(model, optimizer, rank, range(6))
    assert caplog.text.count("uncompressed for its first") == (told > 0 and rank == 0)
    if told and rank == 0:
        assert f"its first {told} rounds" in caplog.text and codec in caplog.text


@pytest.mark.usefixtures("several")
def test_rounds_without_weight_are_told_once(rank, caplog):
    model = make_model()
    optimizer = sgd(model)
    with hvd.LocalSGD(model, optimizer, sync_every=2, weight=lambda: 0.0):
        train(model, optimizer, rank, range(6))
    assert caplog.text.count("weight() was 0 on all ranks") == 1
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())

"""The doors of casync.torch take the same words: compression, rules, min_numel, topology, grad_scaler."""

import inspect

import casync.torch as hvd
import pytest
import torch
from casync.torch import fsdp
from torch import nn

WORDS = {"compression", "rules", "min_numel", "topology"}


@pytest.mark.parametrize("door", [hvd.DistributedOptimizer, hvd.ddp_state, hvd.BackendOptions, fsdp.compress])
def test_a_door_takes_all_words(door):
    assert {*WORDS, "grad_scaler"} <= inspect.signature(door).parameters.keys()


def made(**terms):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 20), nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **terms)


def codecs_of(**terms):
    """By the parameter's name, after a step."""
    model, optimizer = made(**terms)
    model(torch.randn(3, 40)).sum().backward()
    optimizer.step()
    return {name.removeprefix("allreduce."): plan.codec for name, plan in hvd.plans().items()}


def test_an_optimizer_has_a_limit_of_its_own(size):
    if size == 1:
        pytest.skip("one rank has no plans")
    found = codecs_of(compression="onebit", min_numel=50)
    assert found == {"0.weight": "onebit", "0.bias": "none", "1.weight": "none", "1.bias": "none"}


def test_without_one_it_has_the_sessions(size):
    if size == 1:
        pytest.skip("one rank has no plans")
    assert set(codecs_of(compression="onebit").values()) == {"none"}


def test_rules_stand_in_the_place_of_compression(size):
    if size == 1:
        pytest.skip("one rank has no plans")
    found = codecs_of(rules={"0.*": "fp16", "*": "none"}, min_numel=0)
    assert found == {"0.weight": "fp16", "0.bias": "fp16", "1.weight": "none", "1.bias": "none"}


def test_both_are_refused():
    with pytest.raises(hvd.InvalidArgumentError, match="give one of them"):
        made(compression="onebit", rules={"*": "none"})
    with pytest.raises(hvd.InvalidArgumentError, match="give one of them"):
        hvd.BackendOptions("onebit", rules={"*": "none"})


@pytest.mark.parametrize("wrong", [-1, 1.5, "many", True])
def test_a_limit_that_is_no_number_is_refused(wrong):
    with pytest.raises(hvd.InvalidArgumentError, match="min_numel="):
        made(compression="onebit", min_numel=wrong)

"""Gradients that are submitted in groups: the same results, and one submit when the last of a group is there."""

import copy
import warnings

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.replicas import assert_same_bits
from support.training import make_data, make_model, share, wrap


def train(model, optimizer, batches, passes=1):
    for x, y in batches:
        optimizer.zero_grad()
        for part in range(passes):
            F.cross_entropy(model(x[part::passes]), y[part::passes]).backward()
        optimizer.step()


def ends(model):
    """The first parameter and the last: backward reaches them last and first."""
    parameters = list(model.parameters())
    return [[parameters[0], parameters[-1]], parameters[1:3]]


@pytest.mark.parametrize("codec", ["none", "fp16", "onebit", "terngrad(bits=2)", "test_lowrank", "powersgd(rank=2)"])
@pytest.mark.parametrize("wanted", [1, 3, 100, ends])
@pytest.mark.parametrize("passes", [1, 2])
def test_groups_change_no_bit(codec, wanted, passes, rank, size):
    models = [make_model(), make_model()]
    batches = [share(batch, rank) for batch in make_data(size, 4)]
    groups = wanted(models[1]) if callable(wanted) else wanted
    for model, given in zip(models, (None, groups), strict=True):
        optimizer = wrap(model, compression=codec, groups=given, backward_passes_per_step=passes)
        train(model, optimizer, batches, passes)
    assert_same_bits(*models)


def test_a_group_is_submitted_when_its_last_gradient_is_there(rank, size):
    if size < 2:
        pytest.skip("a world of one submits nothing")
    model = make_model()
    named = dict(model.named_parameters())
    first, *between, last = named
    optimizer = wrap(model, groups=[[named[first], named[last]]])
    submitted = {}  # at the time when the gradient of a parameter is there

    def watch(name):
        def look(_):
            submitted[name] = {other for other, p in named.items() if optimizer._handles.get(p) is not None}

        named[name].register_post_accumulate_grad_hook(look)

    for name in named:
        watch(name)
    x, y = share(make_data(size)[0], rank)
    F.cross_entropy(model(x), y).backward()
    assert not submitted[last] & {first, last}, "backward reaches the last parameter long before the first"
    assert all(name in submitted[name] for name in between)
    assert {first, last} <= submitted[first]
    optimizer.step()


def test_groups_that_are_not_complete_are_synchronised_by_step(rank, size):
    """Each rank uses another layer, and both are in one group."""
    model = nn.ModuleList([nn.Linear(3, 5000), nn.Linear(3, 7)])
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), groups=[list(model.parameters())]
    )
    for _ in range(3):
        optimizer.zero_grad()
        model[0 if rank == 0 else 1](torch.ones(1, 3)).sum().backward()
        if size > 1:
            assert not any(handle is not None for handle in optimizer._handles.values())
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    torch.testing.assert_close(model[0].bias, torch.full((5000,), -3.0 / size))
    torch.testing.assert_close(model[1].bias, torch.full((7,), -3.0 * (size - 1) / size))


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_in_a_group(sparse_as_dense, rank, size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(16, 2))
    plain = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        model.named_parameters(),
        groups=[list(model.parameters())],
        sparse_as_dense=sparse_as_dense,
    )
    reference = torch.optim.SGD(plain.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        words = torch.randint(0, 50, (4 * size, 2), generator=generator)
        for m, o, x in ((model, optimizer, words[4 * rank : 4 * rank + 4]), (plain, reference, words)):
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_ranks_need_not_have_the_same_groups(rank, size):
    model, plain = make_model(), make_model()
    optimizer = wrap(model, groups=[None, 2, ends(model)][rank % 3])
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    batches = make_data(size, 4)
    train(model, optimizer, [share(batch, rank) for batch in batches])
    train(plain, reference, batches)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_parameters_that_join_their_group_later(rank, size):
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)])
    for parameter in layers.parameters():
        nn.init.zeros_(parameter)
    layers[1].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=1.0), layers.named_parameters(), groups=[list(layers.parameters())]
    )
    for step in range(3):
        optimizer.zero_grad()
        layers[1].requires_grad_(step > 0)
        sum(layer(torch.full((1, 2), float(rank))).sum() for layer in layers).backward()
        optimizer.step()
    mean = (size - 1) / 2
    torch.testing.assert_close(layers[0].weight, torch.full((2, 2), -3 * mean))
    torch.testing.assert_close(layers[1].weight, torch.full((3, 2), -2 * mean))


def test_num_groups_is_deprecated_and_means_the_same():
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(DeprecationWarning, match="`num_groups` has been replaced by `groups`") as caught:
        hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), num_groups=2)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(model, num_groups=0, groups=0)


def test_what_is_refused():
    model = make_model()
    parameters = list(model.parameters())
    for bad, why in (
        (-1, "groups should be a non-negative integer or a list of list of torch.Tensor, not -1"),
        (parameters, "groups should be a non-negative integer or a list of list"),
        ((parameters,), "groups should be a non-negative integer .* not a tuple"),
        ([["0.weight"]], "groups must consist of torch.Tensor, and holds '0.weight'"),
        ([parameters[:2], parameters[1:]], r"can only appear once in groups.*\(300,\)"),
    ):
        with pytest.raises(ValueError, match=why):
            wrap(model, groups=bad)
    with pytest.raises(ValueError, match="not -2"), pytest.warns(DeprecationWarning):
        wrap(model, num_groups=-2)

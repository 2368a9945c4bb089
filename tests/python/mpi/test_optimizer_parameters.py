"""A step synchronises what the optimizer holds, and what required a gradient when backward began."""

import copy
import gc
import weakref

import casync.torch as hvd
import pytest
import torch
from torch import nn

from support.replicas import assert_replicas_identical, assert_same, assert_same_everywhere
from support.training import make_data, make_model, new_session, share, step, wrap

MAKES = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def pair(make=MAKES["SGD"], **arguments):
    """A model with its distributed optimizer, and the same in one process."""
    model, plain = make_model(), make_model()
    return (model, wrap(model, make(model.parameters()), **arguments)), (plain, make(plain.parameters()))


def sent(one_step):
    """How many bytes this rank sends in it."""
    before = hvd.counters()["sent_bytes"]
    one_step()
    return hvd.counters()["sent_bytes"] - before


def assert_close(one, other):
    assert_same(one, other, rtol=1e-3, atol=1e-4)
    assert_replicas_identical(one)


@pytest.mark.interplay(
    "frozen parameters", "DistributedOptimizer", "supported", "frozen later, they stay; and unfrozen again, they go on"
)
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("passes", [1, 2])
def test_what_is_frozen_later_stays_where_it_is(make, passes, rank, size):
    ours, reference = pair(make, backward_passes_per_step=passes)
    kept = None
    for index, batch in enumerate(make_data(size, 7)):
        for model, optimizer in (ours, reference):
            model[0].requires_grad_(index not in (2, 3, 4))
            optimizer.zero_grad()
            x, y = share(batch, rank) if model is ours[0] else batch
            for _ in range(passes):
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if index == 2:
            kept = copy.deepcopy(ours[0][0].weight.data)
        elif index in (3, 4):
            assert torch.equal(ours[0][0].weight, kept) and ours[0][0].weight.grad is None
    assert not torch.equal(ours[0][0].weight, kept)
    assert_close(ours[0], reference[0])


def test_what_is_frozen_is_not_sent(rank, size):
    (model, optimizer), _ = pair()
    batch = share(make_data(size)[0], rank)
    for _ in range(2):
        step(model, optimizer, batch)
    whole = sent(lambda: step(model, optimizer, batch))
    model[2].requires_grad_(False)  # 9,000 of the 15,450 numbers
    step(model, optimizer, batch)
    part = sent(lambda: step(model, optimizer, batch))
    assert size == 1 or part < 0.7 * whole


@pytest.mark.parametrize("passes", [1, 2])
def test_toggling_within_an_iteration(passes, rank, size):
    """As GANs do, with one optimizer or with two: what is frozen for one backward counts as frozen in it alone."""

    def trained(distributed, data):
        torch.manual_seed(0)
        nets = nn.ModuleList([nn.Linear(4, 300), nn.Linear(300, 1)])
        optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets]
        if distributed:
            optimizers = [
                hvd.DistributedOptimizer(optimizer, [(f"{i}.{n}", p) for n, p in nets[i].named_parameters()],
                                         backward_passes_per_step=passes)
                for i, optimizer in enumerate(optimizers)
            ]  # fmt: skip
        for x in data:
            for mine in (0, 1):
                nets[1 - mine].requires_grad_(False)
                optimizers[mine].zero_grad()
                for _ in range(passes):
                    nets[1](nets[0](x).tanh()).square().mean().backward()
                nets[1 - mine].requires_grad_(True)
                optimizers[mine].step()
        return nets

    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(2 * size, 4, generator=generator) for _ in range(5)]
    assert_close(trained(True, [x[2 * rank : 2 * rank + 2] for x in data]), trained(False, data))


def test_residuals_of_what_is_frozen_stay(rank, size):
    (model, optimizer), _ = pair(compression="onebit")
    step(model, optimizer, share(make_data(size)[0], rank))
    model[0].requires_grad_(False)
    optimizer.zero_grad()
    kept = copy.deepcopy(model[0].weight.data)
    optimizer.flush_residuals()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.equal(model[0].weight, kept)
    assert_replicas_identical(model)


def test_toggling_with_one_optimizer(rank, size):
    """What was frozen while backward ran and is not any more at the step does not move."""
    ours, reference = pair()
    for index, batch in enumerate(make_data(size, 6)):
        for model, optimizer in (ours, reference):
            frozen = model[0] if index % 2 else model[4]
            frozen.requires_grad_(False)
            optimizer.zero_grad()
            x, y = share(batch, rank) if model is ours[0] else batch
            nn.functional.cross_entropy(model(x), y).backward()
            frozen.requires_grad_(True)
            optimizer.step()
    assert_close(ours[0], reference[0])


def test_what_is_frozen_between_backward_and_step_is_stepped(rank, size):
    ours, reference = pair()
    for batch in make_data(size, 3):
        for model, optimizer in (ours, reference):
            optimizer.zero_grad()
            x, y = share(batch, rank) if model is ours[0] else batch
            nn.functional.cross_entropy(model(x), y).backward()
            model[0].requires_grad_(False)
            optimizer.step()
            model[0].requires_grad_(True)
    assert_close(ours[0], reference[0])


def test_ranks_that_freeze_differently_hear_of_it_by_name(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    hvd.shutdown()
    hvd.init(timeout_s=3.0)
    model = nn.Linear(3, 2)
    optimizer = wrap(model)
    if rank == 0:
        model.weight.requires_grad_(False)
    with pytest.raises(hvd.HorovodInternalError, match="weight"):
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    new_session()


# --- parameters that leave and come -----------------------------------------------------------------------------------


@pytest.mark.interplay("parameters that leave or are replaced", "DistributedOptimizer", "supported", "as in torch")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("compression", ["none", "onebit"])
def test_heads_that_come_and_go(named, compression, rank, size):
    """Each is sent while it is held, and freed after."""
    body = nn.Linear(20, 100)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    names = body.named_parameters() if named else None
    optimizer = hvd.DistributedOptimizer(optimizer, names, compression=compression)
    heads, amounts = [], []
    for stage in range(4):
        head = nn.Linear(100, 100)
        heads.append(weakref.ref(head.weight))
        hvd.broadcast_parameters([(f"head{stage}.{n}", p) for n, p in head.named_parameters()], 0)
        if stage % 2:
            optimizer.param_groups.pop()
        elif stage:
            optimizer.param_groups.pop(1)
        optimizer.add_param_group({"params": list(head.parameters())})
        net = nn.Sequential(body, head)

        def one_step(net=net):
            optimizer.zero_grad()
            net(torch.full((1, 20), rank + 1.0)).square().mean().backward()
            optimizer.step()

        for _ in range(2):
            one_step()
        amounts.append(sent(one_step))
        assert_replicas_identical(net)
        del net, one_step, head
    gc.collect()
    assert [reference() is None for reference in heads] == [True] * 3 + [False]
    assert max(amounts) <= 1.05 * min(amounts)
    if size > 1:
        assert len(optimizer._gradients.entries) == 4
        assert len(body.weight._post_accumulate_grad_hooks) == 1


@pytest.mark.parametrize("when", ["before backward", "before step"])
@pytest.mark.parametrize("named", [True, False])
def test_a_parameter_that_is_replaced(named, when, rank, size):
    """Also of another shape, twice at one place; it keeps the name of the place, which rules and messages use."""

    def replace(model, optimizer, columns):
        old, layer = model[2].weight, model[2]
        layer.weight = nn.Parameter(torch.full((30, 300), 0.01 * columns))
        optimizer.state.pop(old, None)
        params = optimizer.param_groups[0]["params"]
        params[next(i for i, parameter in enumerate(params) if parameter is old)] = layer.weight

    models = [make_model(), make_model()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    names = models[0].named_parameters() if named else None
    optimizers[0] = hvd.DistributedOptimizer(optimizers[0], names)
    for index, batch in enumerate(make_data(size, 8)):
        for model, optimizer in zip(models, optimizers, strict=True):
            if when == "before backward" and index in (2, 4):
                replace(model, optimizer, index)
            optimizer.zero_grad()
            x, y = share(batch, rank) if model is models[0] else batch
            nn.functional.cross_entropy(model(x), y).backward()
            if when == "before step" and index in (2, 4):
                replace(model, optimizer, index)
                model[2].weight.grad = torch.full_like(model[2].weight, 0.01)
            optimizer.step()
    assert_close(*models)
    if size > 1:
        names = {entry.name for entry in optimizers[0]._gradients.entries.values()}
        place = "2.weight" if named else "allreduce.noname.0.2"
        assert len(names) == 6 and (place in names or when == "before step")


def test_what_is_removed_with_its_gradient_under_way(rank, size):
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    optimizer = torch.optim.SGD([{"params": list(layer.parameters())} for layer in model], lr=1.0)
    optimizer = wrap(model, optimizer)
    gone = model[1].weight.detach().clone()
    for _ in range(3):
        sum(layer(torch.full((1, 3), rank + 1.0)).sum() for layer in model).backward()
        if len(optimizer.param_groups) == 2:
            optimizer.param_groups.pop()
        optimizer.step()
        optimizer.zero_grad()
    assert_replicas_identical(model[0])
    assert torch.equal(model[1].weight, gone)
    assert not model[1].weight._post_accumulate_grad_hooks


def test_groups_of_parameters_one_of_which_leaves(rank, size):
    model = make_model()
    optimizer = wrap(model, groups=[list(model.parameters())])
    batch = share(make_data(size)[0], rank)
    step(model, optimizer, batch)
    optimizer.param_groups[0]["params"].pop()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    if size > 1:
        assert optimizer._gradients.is_under_way, "the last of those that are left submits all"
    optimizer.step()
    assert_replicas_identical(model)


def test_a_group_with_momentum_that_a_codec_has_taken_moves_up(rank, size):
    """DGC's momentum belongs to the group, not to its number."""
    first, second = nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False)
    model = nn.ModuleList([first, second])
    groups = [
        {"params": [first.weight], "momentum": 0.0},
        {"params": [second.weight], "momentum": 0.75, "nesterov": True, "dampening": 0},
    ]
    optimizer = wrap(model, torch.optim.SGD(groups, lr=0.1), compression="dgc")
    model[1](model[0](torch.ones(1, 100))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.param_groups.pop(0)
    (group,) = optimizer.state_dict()["param_groups"]
    assert (group["momentum"], group["nesterov"]) == (0.75, True)
    model[1](torch.ones(1, 100)).sum().backward()
    optimizer.step()
    (group,) = optimizer.state_dict()["param_groups"]
    assert (group["momentum"], group["nesterov"]) == (0.75, True)


# --- parameters that two optimizers hold ------------------------------------------------------------------------------


def test_an_optimizer_that_is_made_again(rank, size):
    """As by a notebook's cell that is run again: the first one is alive, and not used any more."""
    model, plain = make_model(), make_model()
    data = make_data(size, 6)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    kept = []
    for index, batch in enumerate(data):
        if index % 2 == 0:
            kept.append(hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)))
        step(model, kept[-1], share(batch, rank))
        step(plain, reference, batch)
    assert_close(model, plain)


def test_an_optimizer_of_a_part_follows_one_of_the_whole(rank, size):
    """What the earlier one still has takes part in backward, and is nobody's."""
    model, plain = make_model(), make_model()
    whole = wrap(model)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in make_data(size, 2):
        step(model, whole, share(batch, rank))
        step(plain, reference, batch)
    parts = [torch.optim.SGD(one[4].parameters(), lr=0.1) for one in (model, plain)]
    parts[0] = wrap(model, parts[0])
    for batch in make_data(size, 3):
        step(model, parts[0], share(batch, rank))
        step(plain, parts[1], batch)
    assert_close(model, plain)
    with pytest.raises(ValueError, match=r"4\.weight belongs to a DistributedOptimizer that was made later"):
        if size < 2:
            raise ValueError("4.weight belongs to a DistributedOptimizer that was made later: not in a world of one")
        step(model, whole, share(make_data(size)[0], rank))
    del parts[0]
    whole.zero_grad()
    reference.zero_grad()
    for one in (model, plain):  # the reference has its velocity of before, as the first one has
        one[4].load_state_dict(model[4].state_dict())
    for batch in make_data(size, 3):
        step(model, whole, share(batch, rank))
        step(plain, reference, batch)
    assert_close(model, plain)


@pytest.mark.interplay(
    "several optimizers or models",
    "DistributedOptimizer",
    "refused",
    "two that hold one parameter, where the earlier one is used after the later one was made",
)
@pytest.mark.parametrize("use", ["step", "synchronize", "skip"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["Average", "Adasum"])
def test_two_optimizers_that_hold_one_parameter(op, use, rank, size):
    if size < 2:
        pytest.skip("a world of one reduces nothing")
    if op == hvd.Adasum and use != "step":
        pytest.skip("Adasum has a step alone")
    model = make_model()
    whole = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=op)
    part = hvd.DistributedOptimizer(
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        [(f"part.{n}", p) for n, p in model[0].named_parameters()],
        op=op,
    )
    batch = share(make_data(size)[0], rank)
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    part.synchronize()
    with pytest.raises(ValueError, match=r"belongs to a DistributedOptimizer that was made later"):
        if use == "skip":
            with whole.skip_synchronize():
                whole.step()
        else:
            getattr(whole, use)()
    part.step()


def test_a_parameter_whose_gradient_is_under_way_goes_to_no_other(rank, size):
    if size < 2:
        pytest.skip("a world of one reduces nothing")
    model = make_model()
    first = wrap(model)
    model(torch.ones(1, 20)).sum().backward()
    with pytest.raises(ValueError, match="are being synchronised by another DistributedOptimizer"):
        wrap(model)
    first.step()
    first.zero_grad()
    second = wrap(model)
    step(model, second, share(make_data(size)[0], rank))


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_complex_gradients_are_reduced_whole(codec, dtype, rank, size):
    """Also one that is not contiguous, and one that is the conjugate of another."""
    waves = torch.nn.Parameter(torch.zeros(4, 6, dtype=dtype).t())
    lines = torch.nn.Parameter(torch.zeros(5, dtype=dtype))
    names = [("waves", waves), ("lines", lines)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([waves, lines], lr=1.0), names, compression=codec)
    numbers = torch.arange(24, dtype=torch.float64).reshape(4, 6).t()
    for _ in range(2):
        optimizer.zero_grad()
        waves.grad = (numbers * (rank + 1j)).to(dtype).clone()
        lines.grad = torch.full((5,), rank + 2j, dtype=dtype).conj()
        optimizer.step()
    for value in (waves, lines):
        assert_same_everywhere(torch.view_as_real(value.detach()), "value")
    if codec == "none":
        mean = (size - 1) / 2
        torch.testing.assert_close(waves.detach(), -2 * (numbers * (mean + 1j)).to(dtype))
        torch.testing.assert_close(lines.detach(), torch.full((5,), -2 * (mean - 2j), dtype=dtype))


def test_what_is_pending_of_complex_parameters_is_flushed(size):
    parameter = torch.nn.Parameter(torch.zeros(5000, dtype=torch.complex64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], compression="onebit")
    torch.manual_seed(0)
    slope = torch.randn(5000, dtype=torch.complex64)
    (parameter * slope.conj()).real.sum().backward()
    optimizer.step()
    optimizer.flush_residuals()
    with optimizer.skip_synchronize():
        optimizer.step()
    torch.testing.assert_close(parameter.detach(), -slope, atol=1e-4, rtol=1e-4)

"""join at the end of a training loop."""

import logging

import casync.torch as hvd
import pytest
import torch

from casync.session import default


def distributed(*parameters, prefix="", **arguments):
    named = [(f"{prefix}weight{i or ''}", parameter) for i, parameter in enumerate(parameters)]
    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.01), named, **arguments)


def train(optimizer, weight, batches):
    for _ in range(batches):
        optimizer.zero_grad()
        (weight * 2.0).sum().backward()
        optimizer.step()


def again(**settings):
    hvd.shutdown()
    hvd.init(timeout_s=20.0, **settings)


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_training_loop_of_uneven_length(rank, size):
    """Rank r has 3 + r batches. A gradient that a rank does not have counts as zero."""
    weight = torch.nn.Parameter(torch.zeros(5000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    expected = 0.0
    for batch in range(3 + rank):
        optimizer.zero_grad()
        (weight * (rank + 1.0)).sum().backward()
        optimizer.step()
        expected -= sum(r + 1.0 for r in range(size) if batch < 3 + r) / size
        torch.testing.assert_close(weight.detach(), torch.full((5000,), expected))
    last = hvd.join()
    assert last == size - 1
    hvd.broadcast_parameters({"weight": weight.detach()}, last)
    everyone = hvd.allgather(weight.detach()[None])
    assert all(torch.equal(one, everyone[0]) for one in everyone)


@pytest.mark.parametrize("codec", ["none", "onebit"])
@pytest.mark.parametrize("shortest", [0, 3, 4, 5])
def test_a_check_of_replicas_that_comes_while_a_rank_has_joined(rank, caplog, codec, shortest):
    """Checks are before steps 1 and 5 here."""
    again(check_replicas=4)
    weight = torch.nn.Parameter(torch.zeros(8192))
    train(distributed(weight, compression=codec), weight, shortest + 3 * rank)
    hvd.join()
    assert errors(caplog) == []


def test_epochs_of_different_lengths(rank, size, caplog):
    """After a join all ranks count the same steps: rank 0 has made 12 in the first epoch, and others 10."""
    again(check_replicas=5)
    weight = torch.nn.Parameter(torch.zeros(100))
    optimizer = distributed(weight)
    for lengths in ((12, 10), (3, 9), (0, 4), (5, 0), (7, 7)):
        train(optimizer, weight, lengths[0] if rank == 0 else lengths[1])
        last = hvd.join()
        hvd.broadcast_parameters({"weight": weight.detach()}, last)
        hvd.broadcast_optimizer_state(optimizer, last)
    assert errors(caplog) == []
    with torch.no_grad():
        weight += rank
    train(optimizer, weight, 5)  # one of them is checked, wherever the count is
    assert len(errors(caplog)) == (rank == 0 and size > 1)


def test_what_is_compared_is_of_the_ranks_that_are_left(rank, size, caplog):
    """Rank 0 has joined, so the lowest of the others speaks, and counts as right."""
    if size < 3:
        pytest.skip("two ranks must be left")
    again(check_replicas=4)
    weight = torch.nn.Parameter(torch.zeros(300))
    optimizer = distributed(weight)
    if rank > 0:
        train(optimizer, weight, 2)
        with torch.no_grad():
            weight[7] += rank
        train(optimizer, weight, 4)
    hvd.join()
    if rank == 1:
        (text,) = errors(caplog)
        assert "before step 5: parameter weight of rank 2 is not what it is on rank 1." in text
    else:
        assert errors(caplog) == []


def test_two_optimizers_that_take_different_numbers_of_steps(rank, caplog):
    again(check_replicas=3)
    first, second = (torch.nn.Parameter(torch.zeros(50)) for _ in range(2))
    optimizers = distributed(first, prefix="first."), distributed(second, prefix="second.")
    for epoch in range(3):
        for batch in range(4 + rank + epoch):
            train(optimizers[0], first, 1)
            if batch % 2 == 0:
                train(optimizers[1], second, 1)
        last = hvd.join()
        hvd.broadcast_parameters({"first": first.detach(), "second": second.detach()}, last)
    assert errors(caplog) == []


def test_an_optimizer_that_is_made_again_is_checked_in_its_first_step(rank, size, caplog):
    again(check_replicas=100)
    for found in range(1, 3):
        weight = torch.nn.Parameter(torch.full((50,), float(rank)))
        train(distributed(weight), weight, 3 + rank)
        hvd.join()
        assert len(errors(caplog)) == (found if rank == 0 and size > 1 else 0)


def test_an_optimizer_that_a_rank_makes_after_others_have_joined_with_theirs(rank, caplog):
    """A rank without batches in the first epoch makes it in the second."""
    again(check_replicas=4)
    weight, optimizer = torch.nn.Parameter(torch.zeros(50)), None
    for batches in (0 if rank == 0 else 5, 6):
        if batches:
            optimizer = optimizer or distributed(weight)
            train(optimizer, weight, batches)
        last = hvd.join()
        hvd.broadcast_parameters({"weight": weight.detach()}, last)
    assert errors(caplog) == []


def test_the_check_leaves_no_plan_behind(several):
    """Its size is that of the world: a file of plans with it fits no other one."""
    again(check_replicas=1)
    weight = torch.nn.Parameter(torch.full((50,), float(hvd.rank())))
    train(distributed(weight), weight, 2)
    assert set(default.session().plans()) == {"allreduce.weight"}

"""What an optimizer leaves behind: in its session, in the next one, and in memory."""

import gc
import time
import weakref

import casync.torch as hvd
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from support.held import Meeting
from support.ranks import LIMITS


def cycle(number: int) -> None:
    """A session with an optimizer that compresses, and with a second one whose gradients nobody waits for."""
    torch.manual_seed(number)
    hvd.init(**LIMITS)
    model = torch.nn.Linear(100, 100)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression="onebit")
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    model(torch.ones(1, 100)).sum().backward()
    hvd.barrier()
    hvd.shutdown()


def test_a_hundred_sessions_of_optimizers_leave_nothing_behind(rank, size, tmp_path):
    meeting = Meeting(tmp_path, rank, size)
    hvd.shutdown()
    for number in range(10):
        cycle(number)
    before = meeting.held("before")
    for number in range(100):
        cycle(number)
    assert meeting.held("after") == before
    hvd.init(**LIMITS)


def test_gradients_that_nobody_waits_for(size):
    """They stay alive until shutdown, though model and optimizer are gone."""
    model = torch.nn.Linear(1000, 1000)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression="onebit")
    model(torch.ones(1, 1000)).sum().backward()
    gradient = StorageWeakRef(model.weight.grad.untyped_storage())
    del model, optimizer
    gc.collect()
    hvd.barrier()
    assert not gradient.expired() or size == 1
    hvd.barrier()  # or the first to go on would end what others look at
    hvd.shutdown()
    gc.collect()
    assert gradient.expired()


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("codec", ["none", "onebit", "dgc(ratio=0.1)"])
def test_a_step_that_was_left_half_way_leaves_its_names_free(codec, asks):
    """Ctrl-C, or a loss that is not finite, between backward and step; then training begins anew with another model."""
    for turn in range(3):
        model = torch.nn.Linear(100, 100)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=codec)
        model(torch.ones(1, 100)).sum().backward()
        if turn < 2:
            if not asks:
                hvd.barrier()
                time.sleep(0.5)
            while asks and not all(map(hvd.poll, optimizer._gradients.handles.values())):
                pass
        else:
            optimizer.step()


def test_what_an_earlier_session_has_left_is_nothing_to_this_one(rank, size):
    """Handles are told apart from this session's, and gradients submitted there are missed, not taken for reduced."""
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    hvd.broadcast_parameters(model.state_dict(), 0)
    weight = model.weight.detach().clone()
    model(torch.full((1, 4), float(rank))).sum().backward()
    stale = [hvd.allreduce_async(torch.ones(3), name=f"t{i}") for i in range(5)]
    hvd.shutdown()
    hvd.init(**LIMITS)
    fresh = [hvd.allreduce_async(torch.full((3,), 2.0), name=f"t{i}") for i in range(8)]
    assert [hvd.synchronize(handle) for handle in stale] == [None] * 5
    if size > 1:
        with pytest.raises(ValueError, match=r"shut down"):
            optimizer.step()
    assert all(torch.equal(hvd.synchronize(handle), torch.full((3,), 2.0)) for handle in fresh)
    optimizer.zero_grad()
    model(torch.full((1, 4), float(rank))).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight, weight - (size - 1) / 2)


def test_a_model_and_its_optimizer_are_freed_while_the_session_goes_on(size):
    model = torch.nn.Linear(10, 10)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression="onebit")
    hvd.broadcast_parameters(model.state_dict(), 0)
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    alive = [weakref.ref(thing) for thing in (model, model.weight, optimizer)]
    del optimizer
    gc.collect()
    model(torch.ones(1, 10)).sum().backward()  # hooks of an optimizer that is gone do nothing
    del model
    gc.collect()
    assert not any(thing() is not None for thing in alive)

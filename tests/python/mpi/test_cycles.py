"""init() and shutdown() again and again in one process: nothing stays behind, whatever was outstanding."""

import gc
import os
import time
import weakref
from pathlib import Path

import casync.torch as hvd
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from casync.session import Session
from casync.world import started_by_mpi

LIMITS = {"timeout_s": 20.0, "stall_warning_s": 10.0}
LISTEN = "0A"


def listening_ports() -> int:
    """Sockets of this process on which somebody could connect."""
    mine = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            mine.add(os.readlink(fd))
        except FileNotFoundError:  # the one that lists the folder
            continue
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()
    ]
    return sum(line[3] == LISTEN and f"socket:[{line[9]}]" in mine for line in lines)


def next_communicator() -> int:
    """MPI's number for a communicator that is made now: the lowest one that is free."""
    from mpi4py import MPI

    one = MPI.COMM_SELF.Dup()
    number = one.py2f()
    one.Free()
    return number


def held() -> dict[str, int]:
    """What this process has of that which could leak."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "listening ports": listening_ports(),
        "segments of shared memory": maps.count("/dev/shm/"),
        "communicators": next_communicator() if started_by_mpi(os.environ) else 0,
        "sessions": sum(type(item) is Session for item in gc.get_objects()),
    }


def cycle(number: int, world: int, folder: Path) -> None:
    """A whole life: sets, a timeline, operations that end well and one that does not, an optimizer that compresses, a
    handle that nobody waits for."""
    torch.manual_seed(number)
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(range(1, world))] if world > 1 else []
    hvd.init(process_sets=sets, **LIMITS)
    hvd.start_timeline(str(folder / "timeline.json"))
    size = hvd.size()
    late = hvd.add_process_set([0, size - 1]) if size > 2 else None
    for one in sets:
        if one.included():
            hvd.barrier(process_set=one)
    assert hvd.allreduce(torch.full((5000,), float(number)), name="t")[0] == number
    assert hvd.allgather(torch.ones(hvd.rank() + 1, 2)).shape[0] == size * (size + 1) // 2
    hvd.grouped_allreduce([torch.ones(10), torch.ones(20_000)], op=hvd.Sum)
    model = torch.nn.Linear(100, 100)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression="onebit")
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    if size > 1:
        with pytest.raises(hvd.MismatchError):
            hvd.allreduce(torch.ones(3 + hvd.rank()), name="mismatch")
    if late is not None and number % 2:
        hvd.remove_process_set(late)
    hvd.allreduce_async(torch.ones(1000), name="abandoned")
    hvd.barrier()
    hvd.shutdown()


def test_a_hundred_cycles_leave_nothing_behind(size, monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    for number in range(10):
        cycle(number, size, tmp_path)
    before = held()
    for number in range(100):
        cycle(number, size, tmp_path)
    assert held() == before
    hvd.init(**LIMITS)
    now = held()
    counted = ["threads", "sessions", *(["communicators", "segments of shared memory"] if size > 1 else [])]
    assert all(now[name] > before[name] for name in counted), "a session that is open is seen"


def test_handles_that_nobody_waits_for(rank, size):
    """Operations of all kinds keep their tensors alive until shutdown, which does not wait for what cannot end."""
    submits = [
        *(lambda t, i=i: hvd.allreduce_async_(t, name=f"in place {i}") for i in range(3)),
        lambda t: hvd.allreduce_async(t, name="allreduce", compression="onebit"),
        lambda t: hvd.grouped_allreduce_async_([t, torch.ones(9)], name="group"),
        lambda t: hvd.allgather_async(t, name="gather"),
        lambda t: hvd.broadcast_async_(t, 0, name="broadcast"),
        lambda t: hvd.alltoall_async(t, name="turn"),
        lambda t: hvd.reducescatter_async(t, name="scatter"),
    ]
    if rank == 0:
        submits.append(lambda t: hvd.allreduce_async_(t, name="on one rank only"))
    memory = []
    for submit in submits:
        tensor = torch.ones(600_000 * size)
        memory.append(StorageWeakRef(tensor.untyped_storage()))
        submit(tensor)
    model = torch.nn.Linear(1000, 1000)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression="onebit")
    model(torch.ones(1, 1000)).sum().backward()
    if size > 1:
        memory.append(StorageWeakRef(model.weight.grad.untyped_storage()))
    del tensor, model, optimizer
    gc.collect()
    hvd.barrier()
    assert not any(each.expired() for each in memory)
    hvd.barrier()  # or the first to go on would end what others look at
    start = time.monotonic()
    hvd.shutdown()
    assert time.monotonic() - start < 10
    gc.collect()
    assert all(each.expired() for each in memory)
    hvd.init(**LIMITS)
    assert torch.equal(hvd.allreduce(torch.ones(9), name="in place 0"), torch.ones(9))


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

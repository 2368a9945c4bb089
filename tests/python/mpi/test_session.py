"""Sessions: opened and closed many times, and two at once."""

import sys
import threading
import time

import casync.torch as hvd
import pytest
import torch

from casync.config import Config
from casync.session import Session
from casync.terms import OpKind, Sum, Terms


def total(session: Session, name: str, numel: int = 1000) -> torch.Tensor:
    """The sum over all ranks of (rank + 1), through an explicit session."""
    tensor = torch.full((numel,), session.rank + 1.0)
    registration = Terms(name, OpKind.ALLREDUCE, "float32", (numel,), Sum).register(session)
    handle = session.submit(registration, tensor.data_ptr(), tensor.data_ptr(), tensor)
    assert session.synchronize(handle) is tensor
    return tensor


def test_ranks(rank, size):
    assert hvd.allgather_object((rank, size)) == [(r, size) for r in range(size)]
    assert 0 <= hvd.local_rank() < hvd.local_size() and 0 <= hvd.cross_rank() < hvd.cross_size()
    assert hvd.is_initialized() and hvd.is_homogeneous()


def test_twenty_cycles(size):
    threads = threading.active_count()
    for cycle in range(20):
        hvd.shutdown()
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
            hvd.rank()
        hvd.init(timeout_s=20.0)
        hvd.init()  # does nothing
        assert torch.equal(hvd.allreduce(torch.full((3000,), float(cycle))), torch.full((3000,), float(cycle)))
    assert threading.active_count() == threads


def test_two_sessions_at_once(size):
    """Each has its own names, order and threads; operations of both are outstanding together."""
    config = Config(timeout_s=20.0)
    with Session(config, tag=10_001) as one, Session(config, tag=10_002) as two:
        sessions = (one, two) if one.rank % 2 == 0 else (two, one)  # ranks use them in different orders
        tensors = [torch.full((100_000,), 1.0) for _ in sessions]
        handles = []
        for session, tensor in zip(sessions, tensors, strict=True):
            registration = Terms("same name", OpKind.ALLREDUCE, "float32", (100_000,), Sum).register(session)
            handles.append(session.submit(registration, tensor.data_ptr(), tensor.data_ptr(), tensor))
        for session, handle in zip(sessions, handles, strict=True):
            assert session.synchronize(handle)[-1] == size
        assert total(one, "t")[0] == sum(range(1, size + 1))
        two.shutdown()
        assert total(one, "t")[0] == sum(range(1, size + 1))
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum)[0] == size


def test_a_session_of_some_ranks(rank, size):
    """The ranks but the last, in reverse order."""
    peers = list(range(size))[-2::-1] if size > 1 else [0]
    if rank in peers:
        with Session(Config(timeout_s=20.0), tag=10_003, peers=peers) as session:
            assert (session.rank, session.size) == (peers.index(rank), len(peers))
            assert total(session, "t")[0] == sum(range(1, len(peers) + 1))
    elif size > 1:
        with pytest.raises(ValueError, match="with this one"):
            Session(Config(), tag=10_003, peers=peers)


def test_another_thread_runs_on_while_a_submit_takes_a_turn(size):
    if size == 1:
        pytest.skip("a submit takes no turn in a world of one")
    turns, over = [0], threading.Event()

    def count():
        while not over.is_set():
            turns[0] += 1
            time.sleep(0)  # gives up the GIL, and has it again as soon as the submitting thread lets go

    other = threading.Thread(target=count)
    before, counted = sys.getswitchinterval(), 0
    with Session(Config(timeout_s=20.0), tag=10_004) as session:
        tensors = [torch.ones(50_000) for _ in range(50)]
        terms = [Terms(f"w{i}", OpKind.ALLREDUCE, "float32", (50_000,), Sum) for i in range(len(tensors))]
        given = [(each.register(session), tensor.data_ptr()) for each, tensor in zip(terms, tensors, strict=True)]
        other.start()
        try:
            for _ in range(20):  # the other thread may find no core in one of them
                sys.setswitchinterval(1000)  # nobody takes the GIL away
                begun = turns[0]
                handles = [session.submit(registration, address, address, None) for registration, address in given]
                counted += turns[0] - begun
                sys.setswitchinterval(before)
                session.synchronize_all(handles)
        finally:
            over.set()
            sys.setswitchinterval(before)
        other.join()
    assert counted > 0


@pytest.mark.interplay("submits from several threads", "all", "supported", "each name by one thread at a time")
def test_submit_from_several_threads(rank, size):
    failures = []

    def work(which: int) -> None:
        try:
            for step in range(20):
                mine = torch.full((500 * which + 1,), float(rank + step))
                result = hvd.allreduce(mine, name=f"thread{which}", op=hvd.Sum)
                assert result[0] == sum(range(size)) + step * size
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_counters_count_what_is_sent(rank, size):
    before = hvd.counters()
    hvd.allreduce(torch.ones(250_000), topology="ps", op=hvd.Sum)
    after = hvd.counters()
    hvd.barrier()
    sent = sum(hvd.allgather_object(after["sent_bytes"] - before["sent_bytes"]))
    # Each of N ranks sends the others' partitions and returns its own: 2 (N-1) / N of the gradient.
    payload = 2 * (size - 1) * 1_000_000
    assert payload <= sent <= 1.02 * payload + 4096 * size * size


def test_the_plan_of_a_gradient_is_known_after_use(size):
    if size < 2:
        pytest.skip("a world of one has nothing to compress")
    hvd.allreduce(torch.ones(100_000), name="planned", compression="onebit", topology="ps")
    plan = hvd.plans()["allreduce.planned"]
    assert plan.codec == "onebit" and plan.topology == "ps" and plan.partitions >= 1

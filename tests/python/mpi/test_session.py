"""Sessions beside the default one: two at once, of some of the ranks, and what threads see of them."""

import sys
import threading
import time

import casync.torch as hvd
import pytest
import torch

from casync.config.settings import Config
from casync.session.session import Session
from casync.tensors.signature import OpKind, OpSignature, Sum


def total(session: Session, name: str, numel: int = 1000) -> torch.Tensor:
    """The sum over all ranks of (rank + 1), through an explicit session."""
    tensor = torch.full((numel,), session.rank + 1.0)
    registration = session.register(OpSignature(name, OpKind.ALLREDUCE, "float32", (numel,), Sum))
    handle = session.submit(registration, tensor.data_ptr(), tensor.data_ptr(), tensor)
    assert session.synchronize(handle) is tensor
    return tensor


def test_two_sessions_at_once(size):
    """Each has its own names, order and threads; operations of both are outstanding together."""
    config = Config(timeout_s=20.0)
    with Session(config, tag=10_001) as one, Session(config, tag=10_002) as two:
        sessions = (one, two) if one.rank % 2 == 0 else (two, one)  # ranks use them in different orders
        tensors = [torch.full((100_000,), 1.0) for _ in sessions]
        handles = []
        for session, tensor in zip(sessions, tensors, strict=True):
            registration = session.register(OpSignature("same name", OpKind.ALLREDUCE, "float32", (100_000,), Sum))
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
        terms = [OpSignature(f"w{i}", OpKind.ALLREDUCE, "float32", (50_000,), Sum) for i in range(len(tensors))]
        given = [(session.register(each), tensor.data_ptr()) for each, tensor in zip(terms, tensors, strict=True)]
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

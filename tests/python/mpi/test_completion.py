"""Operations that call back: out of C without Python, and into Python."""

import threading
import time
from contextlib import suppress
from queue import Queue

import casync.torch as hvd
import pytest
import torch

from casync.session import default
from casync.tensors.signature import OpKind, OpSignature, Sum
from support.glue import Glue

OPERATIONS = 100_000


def registration(owner, name, shape, kind=OpKind.ALLREDUCE, dtype="float32"):
    return owner.register(OpSignature(name, kind, dtype, shape, Sum))


class Told:
    """What completions were told, in order."""

    def __init__(self, expected):
        self.calls = []
        self._left = expected
        self._over = threading.Event()

    def __call__(self, error, gathered):
        self.calls.append((error, gathered, threading.current_thread()))
        self._left -= 1
        if not self._left:
            self._over.set()

    def wait(self):
        assert self._over.wait(20)
        return self.calls


def test_a_runtime_in_c_needs_no_gil(rank, size, tmp_path):
    """The GIL is held while its thread submits: whoever wanted it in the core would hang. Some operations fail, and the
    session is shut down in the midst of others.
    """
    owner = default.session()
    glue = Glue(owner, tmp_path)
    glue.start(rank, size)
    assert glue.has_called(OPERATIONS, 120)
    # A thread of Python's that waits or submits makes progress, too, and calls completions; it has let go of the GIL.
    with_python = torch.ones(3)
    for _ in range(100):
        hvd.allreduce_(with_python, name="beside", op=hvd.Min)
        hvd.synchronize(hvd.allreduce_async_(with_python, name="asynchronous", op=hvd.Min))
    hvd.shutdown()
    counts = glue.finish()
    assert counts.accepted == counts.called > OPERATIONS
    assert counts.wrong == 0 and counts.with_gil == 0
    assert counts.failed > (OPERATIONS // 2000 if size > 1 else -1)
    assert counts.refused > 0


def test_completions_of_python(rank, size):
    owner = default.session()
    tensors = [torch.full((5,), float(rank + i)) for i in range(20)]
    told = Told(len(tensors))
    for i, tensor in enumerate(tensors):
        address = tensor.data_ptr()
        submitted = owner.submit(
            registration(owner, f"t{i}", (5,)), address, address, tensor, wake=i == 19, completion=told
        )
        assert submitted is None
    calls = told.wait()
    assert [call[:2] for call in calls] == [(None, None)] * 20
    assert len({thread for *_, thread in calls}) == 1 and calls[0][2] is not threading.current_thread()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((5,), float(sum(r + i for r in range(size)))))
    assert not owner.has_outstanding


def test_a_gather_hands_its_result_over(rank, size):
    owner = default.session()
    rows = torch.full((rank + 1, 2), float(rank))
    told = Told(1)
    gather = registration(owner, "g", (2,), OpKind.ALLGATHER)
    owner.submit(gather, rows.data_ptr(), 0, rows, rows=rank + 1, completion=told)
    ((error, (data, counts), _),) = told.wait()
    assert error is None and counts == [r + 1 for r in range(size)]
    assert torch.equal(
        torch.frombuffer(data, dtype=torch.float32).reshape(-1, 2),
        torch.cat([torch.full((r + 1, 2), float(r)) for r in range(size)]),
    )


def test_a_completion_submits_again_and_may_not_wait(rank, size):
    owner = default.session()
    tensor = torch.ones(1)
    number = registration(owner, "t", (1,))
    over, refused = threading.Event(), []
    left = 50

    def submit():
        owner.submit(number, tensor.data_ptr(), tensor.data_ptr(), tensor, completion=ended)

    def ended(error, gathered):
        nonlocal left
        left -= 1
        if left:
            return submit()
        for wait in (lambda: hvd.allreduce(torch.ones(2), name="waits"), owner.counters):
            try:
                wait()
            except hvd.InvalidArgumentError as error:
                refused.append(str(error))
        over.set()

    submit()
    assert over.wait(20)
    assert len(refused) == 2 and all("a completion cannot wait" in text for text in refused)


def test_a_completion_is_told_a_typed_error(rank, size):
    owner = default.session()
    told = Told(1)
    tensor = torch.ones(3 + rank)
    owner.submit(registration(owner, "t", (3 + rank,)), tensor.data_ptr(), tensor.data_ptr(), tensor, completion=told)
    ((error, _, _),) = told.wait()
    assert error is None if size == 1 else type(error) is hvd.MismatchError and error.tensor == "t"
    assert not owner.has_outstanding


def test_completions_come_before_the_end_of_shutdown(rank):
    owner = default.session()
    told = Told(30)
    tensors = [torch.ones(1) for _ in range(30)]
    for i, tensor in enumerate(tensors):
        number = registration(owner, f"of rank {rank}.{i}", (1,))
        owner.submit(number, tensor.data_ptr(), tensor.data_ptr(), tensor, completion=told)
    if hvd.size() == 1:
        told.wait()
    hvd.shutdown()
    assert len(told.calls) == 30
    assert all(
        (type(error) is hvd.AbortedError) is (hvd_size > 1) for error, *_ in told.calls for hvd_size in [owner.size]
    )
    with pytest.raises(hvd.AbortedError, match="shut down"):
        owner.submit(0, 0, 0, None, completion=told)
    assert not owner.has_outstanding and len(told.calls) == 30


def submit_together(owner, tensors, over):
    """`over` is called when all were reduced."""
    with owner.together(over) as together:
        for i, tensor in enumerate(tensors):
            number = registration(owner, f"t{i}", tuple(tensor.shape))
            address = tensor.data_ptr()
            owner.submit(number, address, address, tensor, wake=tensor is tensors[-1], completion=together)
    return together


@pytest.mark.parametrize("waits", [False, True])
def test_operations_with_one_completion(rank, size, waits):
    owner = default.session()
    for _ in range(20):
        tensors = [torch.full((5,), float(rank + i)) for i in range(30)]
        calls, over = [], threading.Event()

        def ended(error, calls=calls, over=over):
            calls.append(error)
            over.set()

        together = submit_together(owner, tensors, ended)
        if waits:
            together.wait()
        assert over.wait(20)
        assert calls == [None]
        for i, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full((5,), float(sum(r + i for r in range(size)))))
        assert not owner.has_outstanding


def test_who_waits_is_the_one_that_is_called(several, rank):
    """It spares a switch of threads. The peers submit late: rank 0 waits by then, in one of these turns at least."""
    owner = default.session()
    turns, threads = 20, []
    for _ in range(turns):
        if rank > 0:
            time.sleep(0.005)
        submit_together(owner, [torch.ones(4)], lambda error: threads.append(threading.current_thread())).wait()
    hvd.shutdown()
    assert len(threads) == turns
    assert rank > 0 or threading.current_thread() in threads


def test_one_completion_is_told_the_first_error_when_all_are_over(several, rank, size):
    owner = default.session()
    tensors = [torch.ones(3), torch.ones(3 + rank), torch.ones(3)]
    calls = []
    submit_together(owner, tensors, calls.append).wait()
    hvd.shutdown()
    assert [type(error) for error in calls] == [hvd.MismatchError] and calls[0].tensor == "t1"
    assert torch.equal(tensors[2], torch.full((3,), float(size)))


def test_an_error_that_ends_the_session_comes_before_one_that_does_not(several, rank):
    owner = default.session()
    calls = []
    with owner.together(calls.append) as together:
        for name, shape in (("mismatch", (3 + rank,)), (f"of rank {rank}", (3,))):
            tensor = torch.ones(shape)
            address = tensor.data_ptr()
            owner.submit(registration(owner, name, shape), address, address, tensor, completion=together)
    with suppress(hvd.AbortedError):  # by another rank, which was through the barrier before this one
        hvd.barrier()  # by then the first has failed
    owner.abort("enough")
    together.wait()
    hvd.shutdown()  # by its end the thread that calls completions has done so, if it was that and not `wait`
    assert [type(error) for error in calls] == [hvd.AbortedError]


def test_one_completion_of_nothing_and_of_what_was_refused():
    owner = default.session()
    calls = Queue()  # another thread may be at the call when `wait` returns
    submit_together(owner, [], calls.put).wait()
    assert calls.get(timeout=20) is None
    tensor = torch.ones(3)
    number = registration(owner, "t", (3,))
    with pytest.raises(hvd.InvalidArgumentError, match="same name"), owner.together(calls.put) as together:
        for _ in range(2):
            owner.submit(number, tensor.data_ptr(), tensor.data_ptr(), tensor, wake=False, completion=together)
    together.wait()
    assert calls.get(timeout=20) is None
    with pytest.raises(hvd.InvalidArgumentError, match="were closed"):
        owner.submit(number, tensor.data_ptr(), tensor.data_ptr(), tensor, completion=together)
    assert not owner.has_outstanding


def test_one_completion_comes_before_the_end_of_shutdown(several, rank):
    owner = default.session()
    calls = []
    with owner.together(calls.append) as together:
        for i in range(5):
            tensor = torch.ones(1)
            number = registration(owner, f"of rank {rank}.{i}", (1,))
            owner.submit(number, tensor.data_ptr(), tensor.data_ptr(), tensor, completion=together)
    hvd.shutdown()
    assert [type(error) for error in calls] == [hvd.AbortedError]

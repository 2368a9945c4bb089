"""Whole jobs under casyncrun whose ranks do not all come to a good end: what the others get, and when."""

import os

import pytest

from casync.plan.plans import GradientPlan, write_plans

WAITS = {
    "allreduce": "hvd.allreduce(torch.ones(100_000), name='x')",
    "a new name": "hvd.allreduce(torch.ones(10), name='new')",
    "barrier": "hvd.barrier()",
    "allgather": "hvd.allgather(torch.ones(rank + 1, 3))",
    "broadcast": "hvd.broadcast(torch.ones(100_000), 1)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_an_exception_on_one_rank_stops_the_others_with_its_text(job, wait):
    status, output, notes = job(3, f"""
    if rank == 1:
        time.sleep(0.3)
        note()
        raise ValueError("bad label 7")
    try:
        {wait}
    except hvd.AbortedError as error:
        note(text=str(error))
        raise
    """)  # fmt: skip
    assert status != 0
    for rank in (0, 2):
        assert "rank 1: ValueError: bad label 7 at script.py:" in notes[rank]["text"], output
        assert notes[rank]["at"] - notes[1]["at"] < 2.0
    assert "rank 1" in output and "Traceback" in output


@pytest.mark.parametrize("delay", [0, 2])
def test_an_exception_between_rounds_reaches_the_others(job, delay):
    """Those that are in a round, and those that have ended their training."""
    status, output, notes = job(3, f"""
    model = torch.nn.Linear(200, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with hvd.LocalSGD(model, optimizer, sync_every=3, delay={delay}, compression="onebit"):
            for step in range(4 if rank == 0 else 10):
                if rank == 2 and step == 4:
                    time.sleep(0.3)
                    note()
                    raise ValueError("bad label 7")
                optimizer.zero_grad()
                model(torch.ones(4, 200)).sum().backward()
                optimizer.step()
    except hvd.HorovodInternalError as error:
        note(text=str(error))
        raise
    """)  # fmt: skip
    assert status != 0
    for rank in (0, 1):
        assert "rank 2: ValueError: bad label 7 at script.py:" in notes[rank]["text"], output
        assert notes[rank]["at"] - notes[2]["at"] < 2.0


def test_an_exception_inside_backward_reaches_the_others(job):
    """The hooks of a rank have submitted some of its gradients already."""
    status, output, notes = job(3, """
    model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="onebit")
    def fail(gradient):
        if rank == 2 and step == 3:
            note()
            raise RuntimeError("from a hook")
    model[2].weight.register_hook(fail)
    try:
        for step in range(10):
            optimizer.zero_grad()
            model(torch.ones(4, 200)).sum().backward()
            optimizer.step()
    except hvd.HorovodInternalError as error:
        note(text=str(error))
        sys.exit(1)
    """)  # fmt: skip
    assert status != 0
    assert all("RuntimeError: from a hook" in notes[rank]["text"] for rank in (0, 1)), output
    assert all(notes[rank]["at"] - notes[2]["at"] < 2.0 for rank in (0, 1))


def test_a_rank_that_leaves_in_good_order_is_named(job):
    status, output, notes = job(3, """
    if rank == 2:
        sys.exit(0)
    try:
        hvd.allreduce(torch.ones(10), name="alone")
    except hvd.HorovodInternalError as error:
        note(text=str(error))
    while not all(os.path.exists(f"rank{peer}.json") for peer in (0, 1)):
        time.sleep(0.01)  # or the second would be told of the first, which left because of rank 2
    """)  # fmt: skip
    assert all("rank 2" in notes[rank]["text"] and "alone" in notes[rank]["text"] for rank in (0, 1)), output


def test_a_killed_rank_is_named_within_ten_seconds(job):
    status, output, notes = job(3, """
    try:
        for step in range(10_000):
            if rank == 1 and step == 5:
                note()
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(torch.ones(100_000), name="x", topology="ring")
    except hvd.PeerFailureError as error:
        note(text=str(error))
        raise
    """)  # fmt: skip
    assert status != 0
    for rank in (0, 2):
        assert "rank 1" in notes[rank]["text"], output
        assert notes[rank]["at"] - notes[1]["at"] < 10.0


def test_a_stall_is_reported_with_the_missing_rank_and_the_line(job):
    status, output, notes = job(2, """
    if rank == 1:
        time.sleep(2.5)
    hvd.allreduce(torch.ones(10), name="late")
    """)  # fmt: skip
    assert status == 0
    assert "allreduce.late" in output and "script.py:" in output and "rank" in output


def test_an_abort_in_the_middle_of_a_body_leaves_its_memory_alone_until_shutdown(job, tmp_path, monkeypatch):
    """Rank 1 is stopped while it sends to rank 2, rank 0 aborts, and rank 2 lets go of its tensor. What rank 1 goes on
    to send arrives there all the same: MPI was told that address.
    """
    # One body of 128 MiB, much more than sockets hold; through shared memory it might come in one copy.
    write_plans(tmp_path / "plan.json", {"allreduce.w": GradientPlan("ps", "none", partitions=1, first_owner=1)})
    monkeypatch.setenv("CASYNC_PLAN_FILE", str(tmp_path / "plan.json"))
    monkeypatch.setenv("OMPI_MCA_btl", "tcp,self")
    status, output, notes = job(3, """
    import ctypes, gc, weakref
    from pathlib import Path
    import numpy as np
    from casync.session import default

    def wait_for(what):
        deadline = time.monotonic() + 15
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    COUNT = 1 << 25
    pids = hvd.allgather_object(os.getpid())
    tensor = torch.full((COUNT,), float(rank == 1))
    alive, address = weakref.ref(tensor), tensor.data_ptr()
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="w")
    if rank == 0:
        wait_for(Path("stopped").exists)
        default.session().abort("rank 0 gives up")
    if rank == 2:
        memory = np.frombuffer((ctypes.c_float * COUNT).from_address(address), np.float32)
        wait_for(lambda: memory[0] == 1)  # the result begins to arrive
        os.kill(pids[1], signal.SIGSTOP)
        Path("stopped").touch()
    try:
        hvd.synchronize(handle)
        error = "none"
    except hvd.AbortedError as aborted:
        error = str(aborted)
    if rank == 2:
        del tensor
        gc.collect()
        another = torch.full((COUNT,), 7.0)  # would get that memory if it were free
        before, kept = int(np.count_nonzero(memory)), alive() is not None
        os.kill(pids[1], signal.SIGCONT)
        note(error=error, before=before, kept=kept)
        wait_for(lambda: np.count_nonzero(memory) > before)
        hvd.shutdown()
        note(error=error, before=before, kept=kept, freed=alive() is None, spoilt=int((another != 7).sum()))
    """)  # fmt: skip
    assert 2 in notes, output
    assert notes[2]["kept"], "the network may still write to memory that was let go"
    assert notes[2]["error"] == "rank 0 gives up" and 0 < notes[2]["before"] < 1 << 25, output
    assert notes[2]["freed"] and notes[2]["spoilt"] == 0, output


@pytest.mark.interplay("Ctrl-C", "all", "supported", "it ends a wait at once, and by way of casyncrun all ranks")
def test_ctrl_c_interrupts_a_wait(job):
    status, output, notes = job(2, """
    if rank == 1:
        time.sleep(2)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        begin = time.monotonic()
        try:
            hvd.allreduce(torch.ones(10), name="x")
        except KeyboardInterrupt:
            note(waited=time.monotonic() - begin)
    hvd.shutdown()
    """)  # fmt: skip
    assert notes[0]["waited"] < 1.0, output


@pytest.mark.interplay("Ctrl-C", "all", "supported", "it ends a wait at once, and by way of casyncrun all ranks")
def test_ctrl_c_in_the_middle_of_training_ends_all_ranks(job):
    """casyncrun gets the signal; ranks are in backward, in a wait, or in Python."""
    status, output, notes = job(3, """
    model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="onebit")
    note(pid=os.getpid())
    for step in range(100_000):
        if step == 20 and rank == 1:
            os.kill(os.getsid(0), signal.SIGINT)
        optimizer.zero_grad()
        model(torch.ones(4, 200)).sum().backward()
        optimizer.step()
    """)  # fmt: skip
    assert status == 130, output
    assert len(notes) == 3
    for rank in notes:
        with pytest.raises(ProcessLookupError):
            os.kill(notes[rank]["pid"], 0)


@pytest.mark.interplay(
    "fork after init, DataLoader workers",
    "all",
    "supported",
    "the parent goes on; an operation in the child is refused",
)
def test_a_forked_child_has_no_part_in_the_session(job):
    """DataLoader workers are forked: they run, end, and leave the parent's session alone."""
    status, output, notes = job(2, """
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=1, multiprocessing_context="fork")
    total = sum(batch.sum() for batch in loader)
    hvd.allreduce_(torch.ones(3), name="known")
    child = os.fork()
    if child == 0:
        refused = []
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async_):
            for name in ("known", "new"):
                try:
                    call(torch.ones(3), name=name)
                except hvd.CasyncError as error:
                    refused.append("forked" in str(error))
        assert refused == [True] * 6
        sys.exit(7)  # by way of atexit
    _, ended = os.waitpid(child, 0)
    result = hvd.allreduce(total, op=hvd.Sum)
    note(ended=os.waitstatus_to_exitcode(ended), total=int(result))
    """)  # fmt: skip
    assert status == 0, output
    assert all(notes[rank]["ended"] == 7 and notes[rank]["total"] == 56 for rank in (0, 1))

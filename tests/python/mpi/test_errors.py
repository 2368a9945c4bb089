"""Ranks that disagree: both sides are shown on every rank, and the session stays usable."""

import contextlib
import time

import casync.torch as hvd
import pytest
import torch


def disagree(size, *texts, call):
    """`call` must raise a MismatchError that holds `texts` and where it was submitted; then the same name works."""
    if size < 2:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(hvd.MismatchError) as caught:
        call()
    message = str(caught.value)
    for text in (*texts, "test_errors.py:", "rank 0"):
        assert text in message, message
    assert isinstance(caught.value, hvd.HorovodInternalError) and isinstance(caught.value, RuntimeError)
    assert torch.equal(hvd.allreduce(torch.ones(5), name="x"), torch.ones(5))


def test_shapes(rank, size):
    shape = (17, 3) if rank == 0 else (17, 4)
    disagree(size, "Mismatched", "(17, 3)", "(17, 4)", call=lambda: hvd.allreduce(torch.ones(shape), name="x"))


def test_equal_numel_but_another_shape(rank, size):
    shape = (3, 4) if rank == 0 else (4, 3)
    disagree(size, "(3, 4)", "(4, 3)", call=lambda: hvd.allreduce(torch.ones(shape), name="x"))


def test_dtypes(rank, size):
    dtype = torch.int32 if rank == 0 else torch.float32
    disagree(size, "int32", "float32", call=lambda: hvd.allreduce(torch.ones(9, dtype=dtype), name="x"))


def test_ops(rank, size):
    op = hvd.Sum if rank == 0 else hvd.Max
    disagree(size, "Sum", "Max", call=lambda: hvd.allreduce(torch.ones(9), op=op, name="x"))


def test_scale_factors(rank, size):
    factor = 1.0 if rank == 0 else 2.0
    call = lambda: hvd.allreduce(torch.ones(9), prescale_factor=factor, op=hvd.Sum, name="x")  # noqa: E731
    disagree(size, "prescale", call=call)


def test_codecs(rank, size):
    codec = "onebit" if rank == 0 else "fp16"
    disagree(size, "onebit", "fp16", call=lambda: hvd.allreduce(torch.ones(9000), compression=codec, name="x"))


def test_topologies(rank, size):
    route = "ps" if rank == 0 else "ring"
    disagree(size, "ps", "ring", call=lambda: hvd.allreduce(torch.ones(9000), topology=route, name="x"))


def test_broadcast_roots(rank, size):
    root = 0 if rank == 0 else size - 1
    disagree(size, "root", call=lambda: hvd.broadcast(torch.ones(9), root, name="x"))


def test_object_roots(rank, size):
    root = 0 if rank == 0 else size - 1
    if size > 1:
        with pytest.raises(hvd.MismatchError):
            hvd.broadcast_object("x", root)
    assert hvd.broadcast_object("x" * (rank + 1), 0) == "x"


def test_allgather_trailing_dimensions(rank, size):
    shape = (rank, 3) if rank == 0 else (rank, 4)
    disagree(size, "(*, 3)", "(*, 4)", call=lambda: hvd.allgather(torch.ones(shape), name="x"))


def test_allgather_of_equally_long_rows_but_another_shape(rank, size):
    shape = (rank, 2, 6) if rank == 0 else (rank, 3, 4)
    disagree(size, "(*, 2, 6)", "(*, 3, 4)", call=lambda: hvd.allgather(torch.ones(shape), name="x"))


def test_a_mismatch_leaves_other_operations_alone(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    good = [hvd.allreduce_async(torch.full((1000,), float(rank)), op=hvd.Sum, name=f"good{i}") for i in range(10)]
    bad = hvd.allreduce_async(torch.ones(3 + (rank == 0)), name="bad")
    good += [hvd.allreduce_async(torch.full((1000,), float(rank)), op=hvd.Sum, name=f"more{i}") for i in range(10)]
    with pytest.raises(hvd.MismatchError, match="bad"):
        hvd.synchronize(bad)
    assert all(hvd.synchronize(handle)[0] == sum(range(size)) for handle in good)
    assert hvd.synchronize(bad) is None


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast", "reducescatter", "alltoall"])
def test_the_same_name_twice_is_refused_at_submit(kind, size):
    """Though the first may be done by then, where the others have submitted it before."""
    arguments = (0,) if kind == "broadcast" else ()

    def submit():
        return getattr(hvd, f"{kind}_async")(torch.ones(size), *arguments, name="twice")

    for turn in range(size):
        if turn == hvd.rank():
            handle = submit()
            with pytest.raises(ValueError, match=f"Requested to {kind} .* same name .*twice"):
                submit()
        hvd.barrier()
    hvd.synchronize(handle)
    hvd.synchronize(submit())


def test_a_name_is_free_when_its_operation_is_done(size):
    """Synchronized or not; the results can still be had."""
    handles = []
    for turn in range(4):
        handles.append(hvd.allreduce_async(torch.full((3,), float(turn)), name="again"))
        while not hvd.poll(handles[-1]):
            pass
    with pytest.raises(hvd.MismatchError) if size > 1 else contextlib.nullcontext():
        hvd.allreduce(torch.ones(3 + (hvd.rank() == 0)), name="again")
    assert [hvd.synchronize(handle)[0].item() for handle in handles] == [0, 1, 2, 3]
    assert torch.equal(hvd.allreduce(torch.ones(3), name="again"), torch.ones(3))


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


def test_an_abandoned_handle_does_not_disturb(rank, size):
    """Its memory stays alive until shutdown, which lets it end: all ranks agreed on it. A barrier does not wait."""
    hvd.allreduce_async(torch.ones(4_000_000), name="abandoned")
    hvd.barrier()


def test_a_rank_that_comes_late_to_a_mismatch_is_told_too(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    if rank == 0:
        hvd.barrier()
    handle = hvd.allreduce_async(torch.ones(4 + (rank == size - 1)), name="x")
    if rank > 0:
        hvd.barrier()
    with pytest.raises(hvd.MismatchError):
        hvd.synchronize(handle)


def fields(error):
    return {name: getattr(error, name) for name in ("kind", "tensor", "op", "rank", "peer")}


def test_a_mismatch_says_in_fields_what_it_is_about(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(hvd.MismatchError) as caught:
        hvd.allreduce(torch.ones(3 + (rank == 0)), name="x")
    peer = 1 if rank == 0 else 0
    about = {"kind": "mismatch", "tensor": "allreduce.x", "op": "allreduce", "rank": rank, "peer": peer}
    assert fields(caught.value) == about


def test_inside_a_process_set_ranks_are_the_worlds(rank, size):
    if size < 3:
        pytest.skip("a smaller set with two ranks in it needs three")
    hvd.shutdown()
    last = hvd.ProcessSet([size - 2, size - 1])
    hvd.init(timeout_s=20.0, process_sets=[last])
    if last.included():
        with pytest.raises(hvd.MismatchError) as caught:
            hvd.allreduce(torch.ones(3 + last.rank()), name="x", process_set=last)
        peer = {size - 2: size - 1, size - 1: size - 2}[rank]
        about = {"kind": "mismatch", "tensor": "allreduce.x", "op": "allreduce", "rank": rank, "peer": peer}
        assert fields(caught.value) == about


def test_sets_that_ranks_do_not_agree_on_blame_a_rank(rank, size, monkeypatch):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    with pytest.raises(hvd.MismatchError) as caught:
        hvd.add_process_set([0] if rank == 0 else [1])
    assert (caught.value.kind, caught.value.rank, caught.value.peer) == ("mismatch", rank, 1 if rank == 0 else 0)

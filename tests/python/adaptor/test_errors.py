"""Ranks that disagree: both sides are shown on every rank, and the session stays usable."""

import contextlib

import pytest


@pytest.fixture
def disagree(adaptor, hvd, several):
    """`disagree(text, ..., call=f)`: `f` must raise a MismatchError that holds the texts and where it was submitted;
    then the same name works.
    """

    def check(*texts, call):
        with pytest.raises(hvd.MismatchError) as caught:
            call()
        message = str(caught.value)
        site = "tensorflow_graph.py:" if adaptor.in_graph else "test_errors.py:"
        for text in (*texts, site, "rank 0"):
            assert text in message, message
        assert isinstance(caught.value, hvd.HorovodInternalError) and isinstance(caught.value, RuntimeError)
        adaptor.assert_filled(hvd.allreduce(adaptor.ones(5), name="x"), 5, 1)

    return check


def test_shapes(adaptor, hvd, disagree, rank):
    shape = (17, 3) if rank == 0 else (17, 4)
    disagree("Mismatched", "(17, 3)", "(17, 4)", call=lambda: hvd.allreduce(adaptor.ones(shape), name="x"))


def test_equal_numel_but_another_shape(adaptor, hvd, disagree, rank):
    shape = (3, 4) if rank == 0 else (4, 3)
    disagree("(3, 4)", "(4, 3)", call=lambda: hvd.allreduce(adaptor.ones(shape), name="x"))


def test_another_number_of_dimensions(adaptor, hvd, disagree, rank):
    shape = (17, 3) if rank == 0 else (17, 3, 1)
    disagree("Mismatched", "(17, 3)", "(17, 3, 1)", call=lambda: hvd.allreduce(adaptor.ones(shape), name="x"))


def test_dtypes(adaptor, hvd, disagree, rank):
    dtype = "int32" if rank == 0 else "float32"
    disagree("int32", "float32", call=lambda: hvd.allreduce(adaptor.ones(9, dtype), name="x"))


def test_ops(adaptor, hvd, disagree, rank):
    op = hvd.Sum if rank == 0 else hvd.Max
    disagree("Sum", "Max", call=lambda: hvd.allreduce(adaptor.ones(9), op=op, name="x"))


def test_scale_factors(adaptor, hvd, disagree, rank):
    factor = 1.0 if rank == 0 else 2.0
    call = lambda: hvd.allreduce(adaptor.ones(9), prescale_factor=factor, op=hvd.Sum, name="x")  # noqa: E731
    disagree("prescale", call=call)


def test_codecs(adaptor, hvd, disagree, rank):
    codec = "onebit" if rank == 0 else "fp16"
    disagree("onebit", "fp16", call=lambda: hvd.allreduce(adaptor.ones(9000), compression=codec, name="x"))


def test_topologies(adaptor, hvd, disagree, rank):
    route = "ps" if rank == 0 else "ring"
    disagree("ps", "ring", call=lambda: hvd.allreduce(adaptor.ones(9000), topology=route, name="x"))


def test_broadcast_roots(adaptor, hvd, disagree, rank, size):
    root = 0 if rank == 0 else size - 1
    disagree("root", call=lambda: hvd.broadcast(adaptor.ones(9), root, name="x"))


def test_broadcast_shapes_and_dtypes(adaptor, hvd, disagree, rank):
    shape = (9,) if rank == 0 else (9, 1)
    disagree("(9,)", "(9, 1)", call=lambda: hvd.broadcast(adaptor.ones(shape), 0, name="x"))
    dtype = "int64" if rank == 0 else "float64"
    disagree("int64", "float64", call=lambda: hvd.broadcast(adaptor.ones(9, dtype), 0, name="x"))


def test_object_roots(hvd, rank, size):
    root = 0 if rank == 0 else size - 1
    if size > 1:
        with pytest.raises(hvd.MismatchError):
            hvd.broadcast_object("x", root)
    assert hvd.broadcast_object("x" * (rank + 1), 0) == "x"


def test_allgather_trailing_dimensions(adaptor, hvd, disagree, rank):
    shape = (rank, 3) if rank == 0 else (rank, 4)
    disagree("(*, 3)", "(*, 4)", call=lambda: hvd.allgather(adaptor.ones(shape), name="x"))


def test_allgather_of_equally_long_rows_but_another_shape(adaptor, hvd, disagree, rank):
    shape = (rank, 2, 6) if rank == 0 else (rank, 3, 4)
    disagree("(*, 2, 6)", "(*, 3, 4)", call=lambda: hvd.allgather(adaptor.ones(shape), name="x"))


def test_allgather_dtypes(adaptor, hvd, disagree, rank):
    dtype = "int32" if rank == 0 else "float32"
    disagree("int32", "float32", call=lambda: hvd.allgather(adaptor.ones(9, dtype), name="x"))


@pytest.mark.usefixtures("several")
def test_a_mismatch_leaves_other_operations_alone(adaptor, hvd, rank, size):
    def good(name):
        return [hvd.allreduce_async(adaptor.full(1000, rank), op=hvd.Sum, name=f"{name}{i}") for i in range(10)]

    handles = good("good")
    bad = hvd.allreduce_async(adaptor.ones(3 + (rank == 0)), name="bad")
    handles += good("more")
    with pytest.raises(hvd.MismatchError, match="bad"):
        hvd.synchronize(bad)
    for handle in handles:
        adaptor.assert_filled(hvd.synchronize(handle), 1000, sum(range(size)))
    assert hvd.synchronize(bad) is None


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast", "reducescatter", "alltoall"])
def test_the_same_name_twice_is_refused_at_submit(adaptor, hvd, kind, rank, size):
    """Though the first may be done by then, where the others have submitted it before."""
    arguments = (0,) if kind == "broadcast" else ()

    def submit():
        return getattr(hvd, f"{kind}_async")(adaptor.ones(size), *arguments, name="twice")

    for turn in range(size):
        if turn == rank:
            handle = submit()
            with pytest.raises(ValueError, match=f"Requested to {kind} .* same name .*twice"):
                submit()
        hvd.barrier()
    hvd.synchronize(handle)
    hvd.synchronize(submit())


def test_a_name_is_free_when_its_operation_is_done(adaptor, hvd, rank, size):
    """Synchronized or not; the results can still be had."""
    handles = []
    for turn in range(4):
        handles.append(hvd.allreduce_async(adaptor.full(3, turn), name="again"))
        while not hvd.poll(handles[-1]):
            pass
    with pytest.raises(hvd.MismatchError) if size > 1 else contextlib.nullcontext():
        hvd.allreduce(adaptor.ones(3 + (rank == 0)), name="again")
    for turn, handle in enumerate(handles):
        adaptor.assert_filled(hvd.synchronize(handle), 3, turn)
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(3), name="again"), 3, 1)


def test_an_abandoned_handle_does_not_disturb(adaptor, hvd):
    """Its memory stays alive until shutdown, which lets it end: all ranks agreed on it. A barrier does not wait."""
    hvd.allreduce_async(adaptor.ones(4_000_000), name="abandoned")
    hvd.barrier()


@pytest.mark.usefixtures("several")
def test_a_rank_that_comes_late_to_a_mismatch_is_told_too(adaptor, hvd, rank, size):
    if rank == 0:
        hvd.barrier()
    handle = hvd.allreduce_async(adaptor.ones(4 + (rank == size - 1)), name="x")
    if rank > 0:
        hvd.barrier()
    with pytest.raises(hvd.MismatchError):
        hvd.synchronize(handle)


def fields(error):
    return {name: getattr(error, name) for name in ("kind", "tensor", "op", "rank", "peer")}


@pytest.mark.usefixtures("several")
def test_a_mismatch_says_in_fields_what_it_is_about(adaptor, hvd, rank):
    if adaptor.in_graph:
        pytest.skip("TensorFlow's errors have no fields")
    with pytest.raises(hvd.MismatchError) as caught:
        hvd.allreduce(adaptor.ones(3 + (rank == 0)), name="x")
    peer = 1 if rank == 0 else 0
    about = {"kind": "mismatch", "tensor": "allreduce.x", "op": "allreduce", "rank": rank, "peer": peer}
    assert fields(caught.value) == about


def test_inside_a_process_set_ranks_are_the_worlds(adaptor, hvd, rank, size):
    if adaptor.in_graph:
        pytest.skip("TensorFlow's errors have no fields")
    if size < 3:
        pytest.skip("a smaller set with two ranks in it needs three")
    hvd.shutdown()
    last = hvd.ProcessSet([size - 2, size - 1])
    hvd.init(timeout_s=20.0, process_sets=[last])
    if last.included():
        with pytest.raises(hvd.MismatchError) as caught:
            hvd.allreduce(adaptor.ones(3 + last.rank()), name="x", process_set=last)
        peer = {size - 2: size - 1, size - 1: size - 2}[rank]
        about = {"kind": "mismatch", "tensor": "allreduce.x", "op": "allreduce", "rank": rank, "peer": peer}
        assert fields(caught.value) == about


@pytest.mark.usefixtures("several")
def test_sets_that_ranks_do_not_agree_on_blame_a_rank(hvd, rank, monkeypatch):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    with pytest.raises(hvd.MismatchError) as caught:
        hvd.add_process_set([0] if rank == 0 else [1])
    assert (caught.value.kind, caught.value.rank, caught.value.peer) == ("mismatch", rank, 1 if rank == 0 else 0)

"""MXNet's engine and CaSync: nothing waits in it, priorities reach it, and errors come out where results are read."""

import contextlib
import ctypes
import functools
import os
import threading
import time

import casync.numpy as numpy_hvd
import numpy as np
import pytest

from support.mxnet import hvd, make_net, mx, step
from support.timelines import intervals


def test_a_call_returns_before_the_other_ranks_are_there(several, rank):
    if rank > 0:
        time.sleep(0.5)
    began = time.monotonic()
    mean = hvd.allreduce(mx.nd.ones(1000) * rank, name="t")
    later = mean * 2 + 1
    assert time.monotonic() - began < 0.3
    np.testing.assert_allclose(later.asnumpy(), hvd.size() - 1 + 1)


def test_two_operations_are_under_way_at_once(several, rank, size):
    """The second ends, though the first waits for a rank that waits for the second."""
    first, second = mx.nd.ones(10), mx.nd.ones(10)
    if rank == 0:
        hvd.allreduce_(first, op=hvd.Sum, name="first")
        hvd.allreduce_(second, op=hvd.Sum, name="second")
        second.wait_to_read()
        hvd.barrier()
    else:
        hvd.allreduce_(second, op=hvd.Sum, name="second")
        second.wait_to_read()
        hvd.barrier()
        hvd.allreduce_(first, op=hvd.Sum, name="first")
    for array in (first, second):
        np.testing.assert_array_equal(array.asnumpy(), np.full(10, size))


def test_the_input_is_computed_first_and_its_readers_see_the_old_values(rank, size):
    values = mx.nd.ones((500, 500))
    for _ in range(10):
        values = mx.nd.dot(values, values) / 500
    before = values.sum()
    hvd.allreduce_(values, op=hvd.Sum, name="chain")
    after = values.sum()
    values[:] = 0
    np.testing.assert_allclose(after.asscalar(), before.asscalar() * size, rtol=1e-4)


def test_an_array_may_be_dropped_while_it_is_under_way(rank, size):
    for i in range(50):
        hvd.allreduce_(mx.nd.ones(100_000), name=f"dropped {i}")
        hvd.allreduce(mx.nd.ones(10_000), name=f"forgotten {i}")
    mx.nd.waitall()


def in_engine(act, arrays, *, prioritized=False):
    """Have MXNet's engine call `act` on one of its threads, which the call keeps, with these arrays to write."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    function = kind(lambda *_: act())
    handles = (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))
    on_host, urgent = (ctypes.c_int32 * 2)(1, 0), ctypes.c_int(3)
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            function,
            None,
            None,
            on_host,
            None,
            0,
            handles,
            len(arrays),
            ctypes.byref(urgent) if prioritized else None,
            0,
            None,
        )  # fmt: skip
    )
    return function  # to be kept until it has been called


def test_priorities_reach_the_engine(rank, size, tmp_path):
    """While the one thread for urgent operations is held up, others queue: then the most urgent comes first."""
    held, go, arrays = threading.Event(), threading.Event(), [mx.nd.ones(10) for _ in range(8)]
    mx.nd.waitall()
    kept = in_engine(lambda: (held.set(), go.wait()), [mx.nd.ones(1)], prioritized=True)
    held.wait()
    hvd.start_timeline(str(tmp_path / "timeline.json"))
    priorities = [3, -1, 7, 0, 5, 2, 6, 1]
    for array, priority in zip(arrays, priorities, strict=True):
        hvd.allreduce_(array, name=f"{priority}", priority=priority)
    time.sleep(0.1)
    go.set()
    mx.nd.waitall()
    hvd.stop_timeline()
    began = intervals(str(tmp_path / "timeline.json"), rank, "NEGOTIATE_ALLREDUCE")
    order = sorted(began, key=lambda name: began[name])
    assert [int(name) for name in order] == sorted(priorities, reverse=True)
    del kept


def test_priorities_reach_the_plans(rank, size):
    """And so what waits for CaSync. A grouped operation's are all alike, and another priority is agreed on anew."""
    hvd.allreduce(mx.nd.ones(5000), name="p", priority=-3)
    hvd.allreduce_(mx.nd.ones(5000), name="q", priority=4)
    hvd.grouped_allreduce_([mx.nd.ones(5000)], name="r", priority=2)
    mx.nd.waitall()
    plans = hvd.plans()
    names = ("allreduce.p", "allreduce.q", "allreduce.r.0")
    assert [plans[name].priority for name in names] == [-3, 4, 2]
    for priority in (-3, 7):
        assert hvd.allreduce(mx.nd.ones(5000), op=hvd.Sum, name="p", priority=priority)[0].asscalar() == size
        mx.nd.waitall()


@pytest.mark.parametrize("operation", ["allreduce", "allgather", "broadcast"])
def test_ranks_must_give_one_priority(operation, several, rank):
    arguments = (mx.nd.ones(5000), 0) if operation == "broadcast" else (mx.nd.ones(5000),)
    result = getattr(hvd, operation)(*arguments, name="differs", priority=rank)
    with pytest.raises(hvd.MismatchError, match=r"Mismatched priority \d and \d"):
        result.asnumpy()


@pytest.mark.usefixtures("several")
def test_opposite_orders_on_two_ranks_do_not_deadlock(rank, size):
    """More gradients than the engine has threads, which is two, ready in opposite orders."""
    arrays = [mx.nd.zeros(50 * (i + 1)) for i in range(64)]
    order = list(range(64)) if rank % 2 else list(reversed(range(64)))
    for number in range(200):
        for i in order:
            arrays[i][:] = rank + number
            hvd.allreduce_(arrays[i], op=hvd.Sum, name=f"g{i}")
        if number % 50 == 49:
            for array in arrays:
                np.testing.assert_array_equal(array.asnumpy(), np.full(array.shape, sum(range(size)) + size * number))
    mx.nd.waitall()


@pytest.mark.usefixtures("several")
def test_a_function_that_blocks_would_deadlock(rank, size):
    """What the glue does not do: the same with operations that keep the engine's threads until they are over."""
    hvd.shutdown()
    hvd.init(timeout_s=2.0, stall_warning_s=1.0)
    ended, kept = [], []

    def blocking(values, name):
        try:
            hvd.synchronize(numpy_hvd.allreduce_async_(values, name=name))
            ended.append("done")
        except hvd.StallError:
            ended.append("stalled")

    for i in range(8) if rank % 2 else reversed(range(8)):
        act = functools.partial(blocking, np.ones(10, np.float32), f"b{i}")
        kept.append(in_engine(act, [mx.nd.ones(1)]))
    deadline = time.monotonic() + 30
    while len(ended) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(ended) == 8 and "stalled" in ended


@pytest.mark.usefixtures("several")
def test_early_gradients_are_synchronised_before_backward_ends(rank, size, tmp_path):
    if size > (os.cpu_count() or 1):
        pytest.skip("backward leaves no core for anything else")
    path = str(tmp_path / "timeline.json")
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(24):
            net.add(mx.gluon.nn.Dense(500, in_units=500))
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1e-9})
    for measured in (False, True):
        if measured:
            hvd.start_timeline(path)
        with mx.autograd.record():
            loss = net(mx.nd.ones((300, 500))).sum()
        loss.wait_to_read()
        hvd.barrier()
        loss.backward()
        trainer.step(1)
        mx.nd.waitall()
    hvd.stop_timeline()
    _, last_ended = intervals(path, rank, "ALLREDUCE")["net_dense23_weight"]
    first_began, _ = intervals(path, rank, "NEGOTIATE_ALLREDUCE")["net_dense0_weight"]
    # A rank that is far ahead has nobody to synchronise with; the last one has.
    assert any(hvd.allgather_object(last_ended < first_began))


@pytest.mark.usefixtures("several")
class TestErrors:
    def test_shapes(self, rank, size):
        mean = hvd.allreduce(mx.nd.ones(3 + (rank == 0)), name="x")
        later = mean + 1
        with pytest.raises(hvd.MismatchError, match="shapes: the ranks disagree about tensor allreduce.x") as caught:
            later.asnumpy()
        assert "(4,)" in str(caught.value) and "(3,)" in str(caught.value)
        assert "test_mxnet_engine.py:" in str(caught.value)
        assert isinstance(caught.value, hvd.HorovodInternalError)
        np.testing.assert_array_equal(hvd.allreduce(mx.nd.ones(3), name="x").asnumpy(), np.ones(3))

    def test_dtypes(self, rank, size):
        mean = hvd.allreduce(mx.nd.ones(3, dtype="float64" if rank == 0 else "float32"), name="x")
        with pytest.raises(hvd.MismatchError, match="float64"):
            mean.wait_to_read()

    @pytest.mark.parametrize("operation", ["allgather", "grouped_allgather", "alltoall"])
    @pytest.mark.parametrize(
        ("mine", "text"),
        [
            (lambda rank, size: mx.nd.ones((size, 3 + (rank == 0))), "shapes"),
            (lambda rank, size: mx.nd.ones((size, 3) if rank else (size, 3, 1)), "shapes"),
            (lambda rank, size: mx.nd.ones((size, 3), dtype="float64" if rank == 0 else "float32"), "data types"),
        ],
        ids=["extent", "dimensions", "dtype"],
    )
    def test_whose_result_has_rows_of_all_ranks_says_at_the_call_what_does_not_fit(
        self, operation, mine, text, rank, size
    ):
        call = getattr(hvd, operation)
        if operation.startswith("grouped"):
            call = lambda array, name: hvd.grouped_allgather([array], name=name)[0]  # noqa: E731
        for _ in range(2):
            with pytest.raises(
                hvd.MismatchError, match=f"Mismatched .*{text}: the ranks disagree about tensor"
            ) as told:
                call(mine(rank, size), name="x")
            assert "test_mxnet_engine.py:" in str(told.value)
            assert call(mx.nd.ones((size, 3)) * (rank + 1), name="x").sum().asscalar() > 0
        mx.nd.waitall()

    def test_waitall_raises_it_too(self, rank, size):
        hvd.broadcast_(mx.nd.ones(3 + (rank == 0)), 0, name="x")
        with pytest.raises(hvd.MismatchError):
            mx.nd.waitall()

    def test_one_name_twice(self, rank, size):
        """The second is an error as long as the first is not over, which it cannot be before rank 0 comes."""
        if rank == 0:
            hvd.barrier()
            hvd.allreduce(mx.nd.ones(3), name="twice").wait_to_read()
        else:
            first = hvd.allreduce(mx.nd.ones(3), name="twice")
            time.sleep(0.2)
            second = hvd.allreduce(mx.nd.ones(3), name="twice")
            with pytest.raises(ValueError, match="Requested to allreduce a tensor with the same name"):
                second.wait_to_read()
            hvd.barrier()
            first.wait_to_read()

    def test_a_trainer_tells_where_a_parameter_is_read(self, rank, size):
        net = make_net()
        names = sorted(net.collect_params())
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        hvd.allreduce_async(mx.nd.ones(3), name=names[0]) if rank == 0 else None
        step(net, trainer, np.ones((2, 20)), np.zeros(2))
        with pytest.raises(hvd.HorovodInternalError if rank else ValueError):
            net.collect_params()[names[0]].data().asnumpy()

    def test_what_reads_a_failed_array_is_left_out(self, rank, size):
        mean = hvd.allreduce(mx.nd.ones(3 + (rank == 0)), name="x")
        further = hvd.allreduce(mean, name="y")
        with pytest.raises(hvd.MismatchError, match="allreduce.x"):
            further.wait_to_read()
        np.testing.assert_array_equal(hvd.allreduce(mx.nd.ones(3), name="y").asnumpy(), np.ones(3))

    def test_shut_down_while_it_is_under_way(self, rank, size):
        """By another rank; this one waits for it, and says at last what nobody has asked for."""
        if rank == 0:
            hvd.allreduce(mx.nd.ones(3), name="lonely")
        hvd.barrier()
        with pytest.raises(hvd.AbortedError, match="lonely") if rank == 0 else contextlib.nullcontext():
            hvd.shutdown()
        assert not hvd.is_initialized()


def test_not_initialised():
    hvd.shutdown()
    for call in (
        lambda: hvd.allreduce(mx.nd.ones(3)),
        lambda: hvd.broadcast_parameters({"w": mx.nd.ones(3)}),
        lambda: hvd.DistributedTrainer(make_net().collect_params(), "sgd"),
        lambda: hvd.DistributedOptimizer(mx.optimizer.SGD()),
        lambda: mx.kv.create("casync"),
    ):
        with pytest.raises(ValueError, match="CaSync has not been initialized; use hvd.init()"):
            call()


def test_what_is_refused(rank, size):
    with pytest.raises(NotImplementedError, match="row_sparse"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (3, 2)))
    with pytest.raises(ValueError, match="not an NDArray"):
        hvd.allreduce(np.ones(3))
    with pytest.raises(ValueError, match="bool cannot be reduced"):
        hvd.allreduce(mx.nd.ones(3).astype("bool"))
    with pytest.raises(NotImplementedError, match="takes over the optimizer's momentum"):
        hvd.DistributedOptimizer(mx.optimizer.SGD(), compression="dgc")
    with pytest.raises(ValueError, match="invalid params"):
        hvd.broadcast_parameters([mx.nd.ones(3)])


def test_gradients_do_not_pass_through(rank, size):
    """As in Horovod's operations for MXNet."""
    weight = mx.nd.ones(3)
    weight.attach_grad()
    with mx.autograd.record():
        loss = (weight * 2).sum() + hvd.allreduce(weight * 3, name="g").sum()
    loss.backward()
    np.testing.assert_array_equal(weight.grad.asnumpy(), np.full(3, 2.0))


def test_arrays_of_mx_np(rank, size):
    result = hvd.allreduce(mx.np.ones((2, 3)) * rank, op=hvd.Sum, prescale_factor=2.0)
    assert isinstance(result, mx.np.ndarray)
    np.testing.assert_array_equal(result.asnumpy(), np.full((2, 3), size * (size - 1)))
    assert isinstance(hvd.allgather(mx.np.ones((1, 3))), mx.np.ndarray)


@pytest.mark.parametrize("shape", [(4, 8, 10, 10), (4, 8, 20)], ids=str)
def test_values_that_onednn_keeps_in_blocks(shape, rank, size):
    """Of a convolution's output the engine cannot be asked for an address: it is copied first."""
    convolution = {4: mx.gluon.nn.Conv2D, 3: mx.gluon.nn.Conv1D}[len(shape)]
    net = mx.gluon.nn.HybridSequential()
    net.add(convolution(16, 3, in_channels=8), convolution(32, 3, in_channels=16))
    mx.random.seed(2)
    net.initialize()
    images = mx.nd.ones(shape)
    expected = net(images).asnumpy()
    calls = [hvd.allreduce, hvd.allreduce_, lambda t: hvd.broadcast_(t, 0), lambda t: hvd.broadcast(t, 0)]
    for call in calls:
        np.testing.assert_allclose(call(net(images)).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    gathered = hvd.allgather(net(images)).asnumpy()
    np.testing.assert_allclose(gathered, np.concatenate([expected] * size), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        hvd.synchronize(hvd.allreduce_async(net(images))).asnumpy(), expected, rtol=1e-5, atol=1e-6
    )

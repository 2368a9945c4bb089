"""Operations in graphs: what they wait for, and what they do not."""

import threading
import time

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import casync.numpy  # noqa: E402
import casync.tensorflow as hvd  # noqa: E402

from casync.session import default  # noqa: E402

STEPS = 200
GRADIENTS = 64


def ready_in_order(order, reduce):
    """A graph of `GRADIENTS` reductions whose inputs are there one after the other, in this order."""

    @tf.function(autograph=False)
    def step(seed):
        results, before = {}, seed
        for index in order:
            with tf.control_dependencies([before]):
                before = tf.identity(seed + index)
            results[index] = reduce(before, f"gradient.{index}")
        return [results[index] for index in range(GRADIENTS)]

    return step


def order_of(rank):
    return range(GRADIENTS) if rank % 2 == 0 else range(GRADIENTS - 1, -1, -1)


def test_gradients_that_are_ready_in_opposite_orders_do_not_deadlock(rank, size):
    assert tf.config.threading.get_inter_op_parallelism_threads() == 2
    step = ready_in_order(order_of(rank), lambda tensor, name: hvd.allreduce(tensor, name=name, op=hvd.Sum))
    for turn in range(STEPS):
        results = step(tf.fill([100], float(rank + turn)))
        for index in (0, 17, GRADIENTS - 1):
            expected = sum(r + turn + index for r in range(size))
            np.testing.assert_array_equal(results[index].numpy(), np.full(100, expected, np.float32))


@pytest.mark.usefixtures("several")
def test_a_kernel_that_blocks_would_deadlock(rank):
    """So that the test before means something: the same graph, with operations that wait for their result."""
    default.shutdown()
    default.init(timeout_s=3.0, stall_warning_s=1.0)

    def blocking(tensor, name):
        return tf.numpy_function(lambda array: casync.numpy.allreduce(array, name=name), [tensor], tf.float32)

    with pytest.raises(tf.errors.OpError):
        ready_in_order(order_of(rank), blocking)(tf.zeros([100]))


@pytest.mark.usefixtures("several")
def test_no_thread_holds_the_gil_while_it_waits(rank):
    @tf.function
    def late(tensor):
        return [hvd.allreduce(tensor, name=f"late.{i}") for i in range(8)]

    late(tf.zeros([10]))  # it is made before time is taken
    hvd.barrier()
    if rank == 1:
        time.sleep(1.0)
        late(tf.zeros([10]))
        return
    running = threading.Thread(target=late, args=(tf.zeros([10]),))
    running.start()
    longest, last = 0.0, time.monotonic()
    while running.is_alive():
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        time.sleep(0)
    assert longest < 0.5
    running.join()


def test_operations_do_not_wait_for_each_other():
    @tf.function
    def step(tensor):
        return hvd.allreduce(tensor, name="a"), hvd.allreduce(tensor * 2, name="b"), hvd.allgather(tensor, name="c")

    operations = step.get_concrete_function(tf.zeros([3])).graph.get_operations()
    ours = [one for one in operations if one.type.startswith("Casync")]
    assert len(ours) == 3 and not any(one.control_inputs for one in ours)


def test_a_result_that_nobody_wants_is_made_nevertheless(rank, size):
    """Or a rank that wants it would wait for ever."""

    @tf.function
    def step(tensor):
        summed = hvd.allreduce(tensor, name="wanted.by.some", op=hvd.Sum)
        return summed if rank == 0 else tensor

    result = step(tf.ones([3]))
    assert result.numpy().tolist() == [size if rank == 0 else 1.0] * 3


def test_constants_are_reduced_anew_in_each_step(rank, size):
    """Nothing is folded away when the graph is made."""
    counted = hvd.counters()["sent_messages"]

    @tf.function
    def step():
        return hvd.allreduce(tf.constant([1.0, 2.0]), name="constant", op=hvd.Sum)

    for _ in range(3):
        assert step().numpy().tolist() == [size, 2.0 * size]
    before = hvd.counters()["sent_messages"]
    step()
    assert size == 1 or hvd.counters()["sent_messages"] > before >= counted


def test_a_function_that_is_made_again_for_another_shape(rank, size):
    @tf.function
    def step(tensor):
        return hvd.allreduce(tensor, name="reshaped", op=hvd.Sum)

    for shape in ([3], [5, 2], [3], []):
        np.testing.assert_array_equal(step(tf.ones(shape)).numpy(), np.full(shape, size))


def test_shapes_that_are_not_known_when_the_graph_is_made(rank, size):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32), tf.TensorSpec([None, 2], tf.float32)])
    def step(any_shape, any_rows):
        gathered = hvd.allgather(any_rows, name="rows")
        assert gathered.shape.as_list() == [None, 2]
        return hvd.allreduce(any_shape, name="any", op=hvd.Sum), gathered, hvd.reducescatter(any_rows, name="scatter")

    summed, gathered, scattered = step(tf.ones([2, 3]), tf.ones([size, 2]) * rank)
    assert summed.shape == (2, 3) and (summed.numpy() == size).all()
    assert gathered.numpy()[:, 0].tolist() == [r for r in range(size) for _ in range(size)]
    assert scattered.shape == (1, 2)


def test_the_shape_of_a_result_is_known_as_far_as_it_can_be(size):
    @tf.function
    def step(tensor):
        assert hvd.allreduce(tensor, name="a").shape == tensor.shape
        assert hvd.broadcast(tensor, 0, name="b").shape == tensor.shape
        output, received = hvd.alltoall(tensor, tf.constant([1] * size), name="c")
        assert output.shape.as_list() == [None, 4] and received.shape == (size,)
        return output

    step(tf.ones([size, 4]))


@pytest.mark.usefixtures("several")
def test_a_rank_that_runs_eagerly_meets_one_that_runs_a_graph(rank, size):
    reduce = hvd.allreduce if rank == 0 else tf.function(hvd.allreduce)
    assert reduce(tf.fill([4], float(rank)), name="mixed", op=hvd.Sum).numpy().tolist() == [sum(range(size))] * 4


@pytest.mark.usefixtures("several")
def test_ranks_that_disagree(rank):
    @tf.function
    def step(tensor):
        return hvd.allreduce(tensor, name="unlike")

    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        step(tf.zeros([3 + rank]))
    for text in (
        "Mismatched allreduce tensor shapes",
        "allreduce.unlike",
        "rank 0",
        "(3,)",
        "(4,)",
        "test_tensorflow_graph.py",
    ):
        assert text in str(caught.value)
    step(tf.zeros([3]))  # the session stays usable


def test_an_error_of_an_eager_operation_is_tensorflows_and_ours(rank):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        hvd.broadcast(tf.zeros([3]), 99)
    assert isinstance(caught.value, hvd.InvalidArgumentError) and isinstance(caught.value, ValueError)
    assert "invalid root rank 99" in str(caught.value) and "invalid root rank 99" in caught.value.message
    import pickle

    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is hvd.InvalidArgumentError and str(again) == str(caught.value)


@pytest.mark.usefixtures("several")
def test_a_mismatch_of_an_eager_operation_is_a_failed_precondition(rank):
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        hvd.allreduce(tf.zeros([3 + rank]), name="unlike")
    assert isinstance(caught.value, hvd.MismatchError) and caught.value.tensor == "allreduce.unlike"


def test_a_graph_that_runs_before_init_or_after_shutdown():
    @tf.function
    def step(tensor):
        return hvd.allreduce(tensor, name="x")

    step(tf.zeros([3]))
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized; use hvd.init"):
        step(tf.zeros([3]))
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce(tf.zeros([3]), name="x")
    hvd.init(timeout_s=20.0)
    step(tf.zeros([3]))


@pytest.mark.usefixtures("several")
def test_a_graph_of_a_process_set(rank, size):
    hvd.shutdown()
    even = hvd.ProcessSet(range(0, size, 2))
    hvd.init(process_sets=[even], timeout_s=20.0)
    if even.included():

        @tf.function
        def step(tensor):
            return hvd.allreduce(tensor, name="even", op=hvd.Sum, process_set=even)

        assert step(tf.ones([2])).numpy().tolist() == [even.size()] * 2
    else:
        with pytest.raises(ValueError, match="not a member"):
            tf.function(lambda tensor: hvd.allreduce(tensor, process_set=even))(tf.ones([2]))


def test_xla_is_refused_by_name():
    @tf.function(jit_compile=True)
    def step(tensor):
        return hvd.allreduce(tensor, name="x")

    with pytest.raises(tf.errors.UnimplementedError, match=r"compile\(jit_compile=False\)"):
        step(tf.zeros([3]))


def test_inside_a_loop_and_a_branch_of_a_graph(rank, size):
    @tf.function
    def step(tensor, turns):
        for _ in tf.range(turns):
            tensor = hvd.allreduce(tensor, name="looped")
        if turns > 2:
            tensor = hvd.allreduce(tensor, name="branch", op=hvd.Sum)
        return tensor

    mean = (size - 1) / 2
    assert step(tf.fill([2], float(rank)), tf.constant(2)).numpy() == pytest.approx([mean] * 2)
    assert step(tf.fill([2], float(rank)), tf.constant(3)).numpy() == pytest.approx([mean * size] * 2)


def test_what_a_graph_asks_of_the_world(rank, size):
    @tf.function
    def asked():
        return (
            hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op(),
        )  # fmt: skip

    assert [int(number) for number in asked()] == [rank, size, hvd.local_rank(), hvd.local_size(), 1]
    assert int(hvd.rank_op()) == rank
    assert [number for number in range(17) if hvd.check_num_rank_power_of_2(number)] == [1, 2, 4, 8, 16]


def test_a_session_of_tensorflow_1(rank, size):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.fill([3], float(rank)), use_resource=True)
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(tf.reduce_sum(variable) * float(rank + 1), var_list=[variable])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(size - 1))
        session.run(train)
        expected = size - 1 - sum(r + 1 for r in range(size)) / size
        assert session.run(variable) == pytest.approx([expected] * 3)


def test_a_hook_of_tensorflow_1(rank, size):
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=tf.fill([3], float(rank + 5)), use_resource=True)
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            assert session.run(variable).tolist() == [5.0] * 3
    with pytest.raises(NotImplementedError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def test_a_release_that_takes_no_kernels_is_refused_by_name(monkeypatch):
    from types import SimpleNamespace

    from casync.tensorflow import library

    missing = SimpleNamespace(casync_tensorflow_failure=lambda: b"TF_NewAsyncKernelBuilder")
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: missing)
    with pytest.raises(NotImplementedError, match=r"TF_NewAsyncKernelBuilder\): CaSync is tested with 2\.21"):
        library.operations.__wrapped__()


def test_operations_with_handles_are_for_tensors_with_values():
    with pytest.raises(NotImplementedError, match="has no values yet"):
        tf.function(lambda tensor: hvd.allreduce_async(tensor), autograph=False)(tf.ones([2]))

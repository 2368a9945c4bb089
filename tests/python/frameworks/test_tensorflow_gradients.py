"""Gradients through operations, and those of tapes, against references in float64."""

import time

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import casync.tensorflow as hvd  # noqa: E402

from casync.session import default  # noqa: E402

MODES = {"eager": lambda function: function, "graph": lambda function: tf.function(function, autograph=False)}
CODECS = [
    "none", "fp16", "bf16", "onebit", "terngrad(bits=2)", "tbq(tau=0.5)", "dgc(ratio=0.1)", "graddrop(drop=0.9)",
    "adacomp", "threelc", "powersgd(rank=2, start_step=1)", "auto",
]  # fmt: skip


def in_a_session(function):
    """As TensorFlow 1 runs a graph: nothing but what the results need is computed."""

    def run(*given):
        arrays = [one.numpy() for one in given]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            results = session.run(function(*map(tf.constant, arrays)))
        return tf.nest.map_structure(tf.constant, results)

    return run


@pytest.fixture(params=list(MODES.values()), ids=list(MODES))
def mode(request):
    return request.param


@pytest.fixture(params=[*MODES.values(), in_a_session], ids=[*MODES, "session"])
def way(request):
    """Of those in which a gradient is made, where a graph of TensorFlow 1 is one."""
    return request.param


def gradient_of(way, operation, tensor, weights):
    """Of the sum of the result, each element times a weight that depends on nothing but its place."""

    def run(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            result = operation(given)
            loss = tf.reduce_sum(tf.cast(result, tf.float32) * weights(result))
        return tape.gradient(loss, given)

    return way(run)(tensor)


def ranks_weights(result):
    return float(hvd.rank() + 1) * tf.ones_like(result)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_allreduce(way, op, rank, size):
    tensor = tf.fill([3, 2], float(rank))
    gradient = gradient_of(
        way, lambda x: hvd.allreduce(x, op=op, prescale_factor=2.0, postscale_factor=3.0), tensor, ranks_weights
    )
    total = sum(range(1, size + 1)) * 6.0 / (size if op == hvd.Average else 1)
    np.testing.assert_allclose(gradient.numpy(), np.full((3, 2), total), rtol=1e-6)


def test_allgather(way, rank, size):
    tensor = tf.ones([rank + 1, 2])
    gradient = gradient_of(way, lambda x: hvd.allgather(x), tensor, ranks_weights)
    np.testing.assert_allclose(gradient.numpy(), np.full((rank + 1, 2), (size + 1) / 2), rtol=1e-6)


@pytest.mark.parametrize("root", [0, -1])
def test_broadcast(way, root, rank, size):
    root %= size
    gradient = gradient_of(way, lambda x: hvd.broadcast(x, root), tf.ones([4]), ranks_weights)
    np.testing.assert_allclose(gradient.numpy(), np.full(4, (size + 1) / 2 if rank == root else 0.0), rtol=1e-6)


@pytest.mark.parametrize("root", [0, -1])
def test_broadcast_in_a_function_that_is_called(root, rank, size):
    """Its graph, and that of its gradient, are TensorFlow's: the gradient is taken outside."""
    root %= size
    called = tf.function(lambda x: hvd.broadcast(x, root), autograph=False)
    gradient = gradient_of(MODES["eager"], called, tf.ones([4]), ranks_weights)
    np.testing.assert_allclose(gradient.numpy(), np.full(4, (size + 1) / 2 if rank == root else 0.0), rtol=1e-6)


@pytest.mark.parametrize("shape", [[4], [2000, 3], [0], []], ids=str)
def test_broadcast_in_a_graph_of_tensorflow_1(shape, rank, size):
    """By `tf.gradients`, with and without a shape that is known; the ranks that are no root take part in the sum."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        known, unknown = tf.ones(shape), tf.compat.v1.placeholder(tf.float32)
        losses = [tf.reduce_sum(hvd.broadcast(one, 0) * float(rank + 1)) for one in (known, unknown)]
        gradients = [tf.gradients(*pair)[0] for pair in zip(losses, (known, unknown), strict=True)]
        for gradient in session.run(gradients, {unknown: np.ones(shape, np.float32)}):
            np.testing.assert_allclose(gradient, np.full(shape, (size + 1) / 2 if rank == 0 else 0.0), rtol=1e-6)


def test_alltoall(way, rank, size):
    def scattered(given):
        output, _ = hvd.alltoall(given, tf.constant([1] * size))
        return output

    gradient = gradient_of(way, scattered, tf.ones([size + 2, 2]), ranks_weights)
    expected = [[r + 1.0] * 2 for r in range(size)] + [[0.0] * 2] * 2  # rows beyond the splits went nowhere
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_reducescatter(way, op, rank, size):
    gradient = gradient_of(way, lambda x: hvd.reducescatter(x, op=op), tf.ones([2 * size, 3]), ranks_weights)
    factor = size if op == hvd.Sum else 1
    expected = np.repeat(np.arange(1, size + 1, dtype=np.float64) * factor, 2)[:, None] * np.ones((1, 3))
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)


def test_groups_of_floats_and_integers(way, rank, size):
    def run(first, second):
        with tf.GradientTape() as tape:
            tape.watch(first)
            one, two = hvd.grouped_allreduce([first, second], op=hvd.Sum)
            gathered, _ = hvd.grouped_allgather([first, second])
            (scattered,) = hvd.grouped_reducescatter([first], op=hvd.Sum)
            loss = tf.reduce_sum(one) + tf.reduce_sum(gathered) + tf.reduce_sum(scattered)
        return tape.gradient(loss, first), two

    gradient, two = way(run)(tf.ones([size, 2]), tf.ones([size], tf.int32))
    np.testing.assert_allclose(gradient.numpy(), np.full((size, 2), size + 1 + size), rtol=1e-6)
    assert two.numpy().tolist() == [size] * size


def test_ranks_whose_losses_take_other_members_of_a_group(way, rank, size):
    def run(*given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(hvd.grouped_allreduce(given, op=hvd.Sum)[rank % 2])
            loss += tf.reduce_sum(hvd.grouped_allgather(given)[rank % 2]) * float(size)
            loss += tf.reduce_sum(hvd.grouped_reducescatter(given, op=hvd.Sum)[rank % 2])
        return tape.gradient(loss, given)

    for member, gradient in enumerate(way(run)(tf.ones([size, 2]), tf.ones([size, 3]))):
        takers = [r % 2 == member for r in range(size)]
        expected = 2 * sum(takers) + size * np.array(takers)[:, None]
        np.testing.assert_allclose(gradient.numpy(), expected * np.ones((1, 2 + member)), rtol=1e-6)


@pytest.mark.parametrize("way", [MODES["graph"], in_a_session], ids=["graph", "session"])
def test_ranks_that_do_other_things_with_the_results(way, rank, size):
    def run(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            first, second = hvd.allreduce(given, op=hvd.Sum), hvd.allreduce(given * 10.0, op=hvd.Sum)
            loss = tf.reduce_sum(first * 3.0 + second) if rank == 0 else tf.reduce_sum(tf.square(second) + first)
        return tape.gradient(loss, given)

    gradient = way(run)(tf.ones([3]))
    of_second = 1.0 + (size - 1) * 2 * 10 * size
    np.testing.assert_allclose(gradient.numpy(), np.full(3, 3.0 + size - 1 + 10 * of_second), rtol=1e-6)


@pytest.mark.usefixtures("several")
def test_eager_gradients_in_other_orders_are_not_mixed_up(rank):
    """Each blocks, so ranks must make them in one order; if they do not, they hear it."""
    default.shutdown()
    default.init(timeout_s=2.0, stall_warning_s=1.0)
    given = tf.ones([3])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(given)
        results = [hvd.allreduce(given, op=hvd.Sum), hvd.allreduce(given * 10.0, op=hvd.Sum)]
    with pytest.raises(hvd.HorovodInternalError, match=r"allreduce\.noname\.\d\.gradient"):
        for result in results if rank == 0 else reversed(results):
            tape.gradient(result, given)


SECOND = {  # an operation, and what is right of a rank, the number of ranks and all weights
    "allreduce": (lambda x, n: hvd.allreduce(x, op=hvd.Sum), lambda r, n, w: np.full(n, 2 * w.sum() ** 2)),
    "allgather": (lambda x, n: hvd.allgather(x), lambda r, n, w: np.full(n, 2 * w.mean() * w[r] / n)),
    "broadcast": (lambda x, n: hvd.broadcast(x, 0), lambda r, n, w: np.full(n, 2 * w.mean() / n * (r == 0))),
    "alltoall": (lambda x, n: hvd.alltoall(x), lambda r, n, w: 2 * w * w[r]),
    "reducescatter": (lambda x, n: hvd.reducescatter(x, op=hvd.Sum), lambda r, n, w: 2 * w * n * n * w.mean()),
}


@pytest.mark.parametrize("name", SECOND)
def test_gradients_of_gradients(way, name, rank, size):
    operation, right = SECOND[name]

    def run(given):
        with tf.GradientTape() as outer:
            outer.watch(given)
            with tf.GradientTape() as inner:
                inner.watch(given)
                loss = tf.reduce_sum(tf.square(operation(given, size)) * float(rank + 1))
            loss = tf.reduce_sum(inner.gradient(loss, given) * float(rank + 1))
        return outer.gradient(loss, given)

    expected = right(rank, size, np.arange(1.0, size + 1))
    np.testing.assert_allclose(way(run)(tf.ones([size])).numpy(), expected, rtol=1e-6)


GATHERED = {  # an operation on two rows for each rank, and what is right of a rank, the number of ranks and all weights
    "allreduce": (lambda x, n: hvd.allreduce(x, op=hvd.Sum), lambda r, n, w: [w.sum()] + [0] * (2 * n - 1)),
    "allgather": (lambda x, n: hvd.allgather(x), lambda r, n, w: [w.mean() * (r == 0)] + [0] * (2 * n - 1)),
    "broadcast": (lambda x, n: hvd.broadcast(x, 0), lambda r, n, w: [w.mean() * (r == 0)] + [0] * (2 * n - 1)),
    "alltoall": (lambda x, n: hvd.alltoall(x), lambda r, n, w: np.ravel([(v * (r == 0), 0) for v in w])),
    "reducescatter": (lambda x, n: hvd.reducescatter(x, op=hvd.Sum), lambda r, n, w: np.ravel([(v * n, 0) for v in w])),
    "grouped_allreduce": (
        lambda x, n: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)[0], lambda r, n, w: [w.sum()] + [0] * (2 * n - 1)
    ),
    "grouped_allgather": (
        lambda x, n: hvd.grouped_allgather([x, 2 * x])[0], lambda r, n, w: [w.mean() * (r == 0)] + [0] * (2 * n - 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GATHERED)
def test_gradients_of_rows_that_are_looked_up(way, name, rank, size):
    """What comes into the operation's gradient is slices."""
    operation, right = GATHERED[name]

    def run(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(tf.gather(operation(given, size), [0])) * float(rank + 1)
        return tape.gradient(loss, given)

    expected = np.array(right(rank, size, np.arange(1.0, size + 1)))[:, None] * np.ones((1, 2))
    np.testing.assert_allclose(way(run)(tf.ones([2 * size, 2])).numpy(), expected, rtol=1e-6)


def test_alltoall_of_a_shape_that_is_not_known(rank, size):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def run(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(hvd.alltoall(given, tf.constant([1] * size))[0] * float(rank + 1))
        return tape.gradient(loss, given)

    for shape in ([size + 1], [size + 1, 2, 1]):
        expected = np.ones(shape) * np.array([*range(1, size + 1), 0]).reshape(-1, *[1] * (len(shape) - 1))
        np.testing.assert_allclose(run(tf.ones(shape)).numpy(), expected, rtol=1e-6)


def test_an_op_without_a_gradient_is_named(way):
    with pytest.raises(NotImplementedError, match="stop_gradient"):
        gradient_of(way, lambda x: hvd.allreduce(x, op=hvd.Max), tf.ones([2]), ranks_weights)


# --- tapes ------------------------------------------------------------------------------------------------------------


def losses_of(rank):
    """Two variables, and a loss whose gradients differ between ranks."""
    first = tf.Variable(np.full((60, 100), 0.5, np.float32), name="first")
    second = tf.Variable(np.ones(7, np.float32), name="second")

    def loss(factor):
        return tf.reduce_sum(first * factor) + 2.0 * tf.reduce_sum(second * second) * factor

    return first, second, loss


def test_gradients_of_a_tape_are_means(mode, rank, size):
    first, second, loss = losses_of(rank)

    def step(factor):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            value = loss(factor)
        return tape.gradient(value, [first, second])

    step = mode(step)
    for turn in range(3):
        one, two = step(tf.constant(float(rank + turn)))
        mean = (size - 1) / 2 + turn
        np.testing.assert_allclose(one.numpy(), np.full((60, 100), mean), rtol=1e-6)
        np.testing.assert_allclose(two.numpy(), np.full(7, 4 * mean), rtol=1e-6)


@pytest.mark.usefixtures("several")
def test_an_eager_program_makes_its_graph_once():
    from casync.tensorflow.tape import _gradients_of

    variable = tf.Variable(tf.ones([3]), name="once")
    for turn in range(4):
        with tf.GradientTape() as plain:
            value = tf.reduce_sum(variable * float(turn))
        tape = hvd.DistributedGradientTape(plain, compression={"once": "none", "*": "fp16"})
        tape.gradient(value, [variable])
    assert tape._gradients is _gradients_of(tape._settings)
    assert tape._gradients._compiled.experimental_get_tracing_count() == 1


def test_a_rule_without_effect_is_told_once(caplog, rank):
    variable = tf.Variable(tf.ones([3]), name="told")
    for _ in range(3):
        with tf.GradientTape() as plain:
            value = tf.reduce_sum(variable)
        hvd.DistributedGradientTape(plain, compression={"idle": "fp16", "*": "none"}).gradient(value, [variable])
    assert len([record for record in caplog.records if "'idle'" in record.getMessage()]) == (rank == 0)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(mode, codec, rank, size):
    """What a gradient loses in one step comes in a later one: the means of many steps tend to the mean."""
    weights = tf.Variable(np.zeros((60, 100), np.float32), name=f"weights.{codec}")
    exact = np.random.default_rng(0).standard_normal((size, 60, 100)).astype(np.float32)
    mine = tf.constant(exact[rank])

    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(weights * mine)
        return hvd.DistributedGradientTape(tape, compression=codec).gradient(value, weights)

    step = mode(step)
    total, steps = np.zeros((60, 100)), 30
    for _ in range(steps):
        gradient = step().numpy()
        for other in hvd.allgather_object(gradient.tobytes()):
            assert other == gradient.tobytes()
        total += gradient
    mean = exact.astype(np.float64).mean(0)
    if codec not in ("none", "fp16", "bf16", "auto") and size > 1:
        assert default.session().plans()[f"allreduce.weights.{codec}"].codec.startswith(codec.partition("(")[0])
    similar = (total * mean).sum() / np.linalg.norm(total) / np.linalg.norm(mean)
    assert similar > (0.999 if codec in ("none", "fp16", "bf16") else 0.8)


@pytest.mark.usefixtures("several")
def test_slices_stay_slices_unless_they_go_as_dense_ones(mode, rank, size):
    table = tf.Variable(np.zeros((10, 4), np.float32), name="table")

    def step(dense, rows):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(table, rows) * float(rank + 1))
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=dense, compression={"table": "fp16", "*": "none"})
        return tape.gradient(value, table)

    expected = np.zeros((10, 4))
    for r in range(size):
        expected[[r, r, 9]] += 0.0
        np.add.at(expected, [r, r, 9], (r + 1) / size)
    rows = tf.constant([rank, rank, 9])
    slices = mode(lambda given: step(False, given))(rows)
    assert isinstance(slices, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(slices).numpy(), expected, rtol=1e-3)
    dense = mode(lambda given: step(True, given))(rows)
    assert isinstance(dense, tf.Tensor)
    np.testing.assert_allclose(dense.numpy(), expected, rtol=1e-3)


def test_slices_are_refused_by_name_where_they_cannot_go(mode, rank):
    def slices(values):
        return tf.IndexedSlices(values, tf.constant([0, 2]), tf.constant([5, 3], tf.int64))

    with pytest.raises(NotImplementedError, match="prescale_factor"):
        mode(lambda v: hvd.allreduce(slices(v), prescale_factor=2.0))(tf.ones([2, 3]))
    with pytest.raises(NotImplementedError, match="op Sum or Average"):
        mode(lambda v: hvd.allreduce(slices(v), op=hvd.Max))(tf.ones([2, 3]))
    with pytest.raises(NotImplementedError, match="onebit"):
        mode(lambda v: hvd.allreduce(slices(v), name="s", compression="onebit"))(tf.ones([2, 3]))
    with pytest.raises(NotImplementedError, match="dense"):
        mode(lambda v: hvd.reducescatter(slices(v)))(tf.ones([2, 3]))


def test_a_variable_that_has_no_gradient_stays_without(mode):
    used, unused = tf.Variable([1.0, 2.0], name="used"), tf.Variable([3.0], name="unused")

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            value = tf.reduce_sum(used * 3.0)
        return tape.gradient(value, {"a": used, "b": unused})

    gradients = mode(step)()
    assert gradients["a"].numpy().tolist() == [3.0, 3.0] and gradients["b"] is None


def test_local_sources_stay_with_their_rank(mode, rank, size):
    shared, local = tf.Variable([1.0], name="shared"), tf.Variable([1.0], name="local")

    def gradients(scales):
        with tf.GradientTape() as tape:
            value = (shared + local) * float(rank + 1)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scales)
        tape.register_local_source(local)
        return tape.gradient(value, [shared, local])

    for scales in (True, False):
        one, two = mode(lambda scales=scales: gradients(scales))()
        assert one.numpy().tolist() == pytest.approx([(size + 1) / 2])
        assert two.numpy().tolist() == pytest.approx([(rank + 1) / (size if scales else 1)])


def test_predivide_groups_and_ops(mode, rank, size):
    first, second, loss = losses_of(rank)
    total = sum(range(size))
    for arguments, factor in (
        ({"gradient_predivide_factor": 4.0}, 1 / size),
        ({"op": hvd.Sum}, 1.0),
        ({"groups": [[first, second]]}, 1 / size),
        ({"groups": 2}, 1 / size),
    ):

        def step(factor, arguments=arguments):
            with tf.GradientTape() as tape:
                value = loss(factor)
            return hvd.DistributedGradientTape(tape, **arguments).gradient(value, [first, second])

        one, two = mode(step)(tf.constant(float(rank)))
        np.testing.assert_allclose(one.numpy(), np.full((60, 100), total * factor), rtol=1e-6)
        np.testing.assert_allclose(two.numpy(), np.full(7, 4 * total * factor), rtol=1e-6)


def test_two_variables_of_one_name(mode, rank, size):
    pair = [tf.Variable(tf.ones([2]), name="same"), tf.Variable(tf.ones([3]), name="same")]

    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(pair[0]) * float(rank) + tf.reduce_sum(pair[1]) * 10.0
        return hvd.DistributedGradientTape(tape).gradient(value, pair)

    one, two = mode(step)()
    assert one.numpy().tolist() == pytest.approx([(size - 1) / 2] * 2) and two.numpy().tolist() == [10.0] * 3


def later(tensor, waits):
    """The tensor, whose gradient takes a while to make on a rank that `waits`."""

    @tf.custom_gradient
    def run(given):
        def back(gradient):
            if not waits:
                return gradient
            made = tf.numpy_function(lambda values: time.sleep(0.2) or values, [gradient], tf.float32)
            made.set_shape(gradient.shape)
            return made

        return tf.identity(given), back

    return run(tensor)


def losses_in_other_orders(first, second, x, rank):
    """Of two variables, or of one; the gradient of the first is late on even ranks, and of the second on odd ones."""
    late = [later(one * x, waits) for one, waits in ((first, rank % 2 == 0), (second, rank % 2 == 1))]
    return tf.reduce_sum(late[0]), 100.0 * tf.reduce_sum(late[1])


@pytest.mark.parametrize("codec", ["none", "always(onebit)"])
@pytest.mark.parametrize("inner", [False, True], ids=["one function", "functions inside"])
def test_two_tapes_of_variables_that_have_no_names(inner, codec, rank, size):
    """As in a GAN. Also where one of the functions inside is traced again, and the other is not."""
    pair = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
    x = [rank + 1.0, rank + 2.0]

    def gradient(tape, loss, variable, _turn):
        return hvd.DistributedGradientTape(tape, compression=codec).gradient(loss, variable)

    each = [tf.function(gradient) if inner else gradient for _ in pair]

    @tf.function
    def step(turn):
        with tf.GradientTape() as one, tf.GradientTape() as two:
            losses = losses_in_other_orders(*pair, tf.constant(x), rank)
        if inner:
            return stepped(turn)
        return [each[i](tape, losses[i], pair[i], turn) for i, tape in enumerate((one, two))]

    @tf.function
    def of_first():
        with tf.GradientTape() as tape:
            loss, _ = losses_in_other_orders(*pair, tf.constant(x), rank)
        return gradient(tape, loss, pair[0], None)

    @tf.function
    def of_second(turn):
        with tf.GradientTape() as tape:
            _, loss = losses_in_other_orders(*pair, tf.constant(x), rank)
        return gradient(tape, loss, pair[1], turn)

    def stepped(turn):
        return [of_first(), of_second(turn)]

    for turn in (1, 1, 2):  # a number in Python has a graph of its own
        first, second = (one.numpy() for one in step(turn))
        mean = np.array([(size + 1) / 2, (size + 3) / 2])
        if codec == "none" or size == 1:
            np.testing.assert_allclose(first, mean, rtol=1e-6)
            np.testing.assert_allclose(second, 100.0 * mean, rtol=1e-6)
        assert (first < 10.0).all() and (second > 10.0).all()


def test_two_losses_of_one_variable_by_a_persistent_tape(rank, size):
    variable = tf.Variable([1.0, 2.0], name="twice")

    @tf.function
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            losses = losses_in_other_orders(variable, variable, x, rank)
        return [tape.gradient(loss, variable) for loss in losses]

    for _ in range(3):
        first, second = step(tf.fill([2], rank + 1.0))
        np.testing.assert_allclose(first.numpy(), np.full(2, (size + 1) / 2), rtol=1e-6)
        np.testing.assert_allclose(second.numpy(), np.full(2, 50.0 * (size + 1)), rtol=1e-6)


@pytest.mark.usefixtures("several")
def test_gradients_of_several_sets_of_ranks_have_their_own_numbers(rank, size):
    """A rank that is in one set more than another one has its variable's name there too."""
    hvd.shutdown()
    alone = hvd.ProcessSet([0, 1])
    hvd.init(timeout_s=5.0, process_sets=[alone] if size > 2 else [])
    variable = tf.Variable([1.0], name="in two sets")

    @tf.function
    def step():
        results = []
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(variable) * (rank + 1.0)
        if size > 2 and rank < 2:
            results.append(hvd.DistributedGradientTape(tape, process_set=alone).gradient(loss, variable))
        return [*results, hvd.DistributedGradientTape(tape).gradient(loss, variable)]

    assert [one.numpy().tolist() for one in step()] == [[1.5]] * (size > 2 and rank < 2) + [[(size + 1) / 2]]


def test_gradients_of_tensorflow_1_computed_twice(rank, size):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("weight", initializer=[1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), compression="onebit")
        losses = losses_in_other_orders(weight, weight, rank + 1.0, rank)
        gradients = [optimizer.compute_gradients(loss)[0][0] for loss in losses]
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            first, second = session.run(gradients)
            np.testing.assert_allclose(first, np.full(2, (size + 1) / 2), rtol=1e-6)
            np.testing.assert_allclose(second, np.full(2, 50.0 * (size + 1)), rtol=1e-6)


@pytest.mark.parametrize("arguments", [{}, {"gradient_predivide_factor": 4.0}, {"op": hvd.Sum}], ids=str)
def test_a_penalty_of_the_reduced_gradient(mode, arguments, rank, size):
    """As one process has it that sees all data; a sum over ranks has the penalty of each."""
    weight = tf.Variable([2.0, 3.0], name="penalised")

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), **arguments) as outer:
            with hvd.DistributedGradientTape(tf.GradientTape(), **arguments) as inner:
                loss = tf.reduce_sum(weight**3) * (rank + 1.0)
            penalty = tf.reduce_sum(inner.gradient(loss, weight) ** 2)
        return outer.gradient(penalty, weight)

    factor, ranks = (size * (size + 1) / 2, size) if "op" in arguments else ((size + 1) / 2, 1)
    for _ in range(2):
        np.testing.assert_allclose(mode(step)().numpy(), ranks * 36 * factor**2 * np.array([8.0, 27.0]), rtol=1e-5)


def test_a_reduced_gradient_of_an_op_without_a_gradient_is_named(several):
    weight = tf.Variable([2.0], name="greatest")
    with pytest.raises(NotImplementedError, match="stop_gradient"), tf.GradientTape() as outer:
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Max) as inner:
            loss = tf.reduce_sum(weight**2)
        outer.gradient(inner.gradient(loss, weight), weight)


def test_an_optimizer_of_tensorflow_1_that_is_wrapped_again(rank, size):
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    for compression in ("fp16", "none"):
        assert hvd.DistributedOptimizer(optimizer, compression=compression) is optimizer
    weight = tf.Variable([1.0], name="wrapped again")
    ((gradient, _),) = optimizer.compute_gradients(lambda: tf.reduce_sum(weight) * (rank + 1.0), [weight])
    assert gradient.numpy().tolist() == [(size + 1) / 2], "reduced once"


def test_rules_and_their_mistakes(rank):
    variable = tf.Variable(np.ones(5000, np.float32), name="kernel")
    with tf.GradientTape(persistent=True) as tape:
        value = tf.reduce_sum(variable)
    with pytest.raises(ValueError, match="matches no rule"):
        hvd.DistributedGradientTape(tape, compression={"bias": "onebit"}).gradient(value, [variable])
    with pytest.raises(ValueError, match="twobit"):
        hvd.DistributedGradientTape(tape, compression="twobit")
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedGradientTape(tape, op=hvd.Sum, gradient_predivide_factor=2.0)


def test_rules_see_the_shape_of_a_variable(rank, size):
    rows = tf.Variable(np.ones((100, 50), np.float32), name="rows")
    flat = tf.Variable(np.ones(5000, np.float32), name="flat")
    table = {"* where ndim == 2": "fp16", "* where numel > 6000": "onebit", "*": "none"}

    def gradients():
        with tf.GradientTape() as plain:
            value = tf.reduce_sum(rows) + tf.reduce_sum(flat)
        return hvd.DistributedGradientTape(plain, compression=table).gradient(value, [rows, flat])

    for one in (*gradients(), *tf.function(gradients)()):
        assert np.all(np.asarray(one) == 1.0)
    if size > 1:
        codecs = {plan.codec for name, plan in hvd.plans().items() if "rows" in name}
        assert codecs == {"fp16"}
        assert {plan.codec for name, plan in hvd.plans().items() if "flat" in name} == {"none"}


def test_a_shape_that_a_graph_leaves_open_has_no_rule_by_shape(rank):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def reduced(tensor):
        return hvd.allreduce(tensor, name="open", compression={"* where numel > 3": "fp16", "*": "none"})

    with pytest.raises(ValueError, match=r"'\* where numel > 3' .* open has none yet when its codec is chosen"):
        reduced(tf.ones(5000))


def test_variables_of_the_root(rank, size):
    variables = [tf.Variable(tf.fill([3], float(rank))), tf.Variable(rank, dtype=tf.int64)]
    hvd.broadcast_variables(variables, root_rank=size - 1)
    assert [np.asarray(one).tolist() for one in variables] == [[size - 1.0] * 3, size - 1]
    variables[0].assign(tf.fill([3], float(rank)))
    tf.function(lambda: hvd.broadcast_variables(variables, root_rank=0) and None)()
    assert variables[0].numpy().tolist() == [0.0] * 3


def test_after_a_variable_that_ranks_disagree_about_the_names_can_be_used_again(rank, several):
    def variables(odd):
        return [tf.Variable(tf.fill([odd if i == 1 else 3], float(rank)), name=f"v{i}") for i in range(4)]

    for _ in range(2):
        with pytest.raises(hvd.MismatchError, match="v1"):
            hvd.broadcast_variables(variables(4 + rank), 0)
        assert not default.session().has_outstanding
        good = variables(3)
        hvd.broadcast_variables(good, 0)
        assert all(one.numpy().tolist() == [0.0] * 3 for one in good)


def test_a_refused_variable_is_named(rank):
    odd = [tf.Variable(tf.ones(3), name="plain"), tf.Variable(tf.constant(["text"]), name="odd")]
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="tensor odd: dtype string"):
            hvd.broadcast_variables(odd, 0)
        assert not default.session().has_outstanding
    with pytest.raises(NotImplementedError, match=r"tensor broadcast\.odd: dtype string"):
        tf.function(lambda: hvd.broadcast_variables(odd, 0))()


def test_checkpoint_and_resume(tmp_path, rank, size):
    """Residuals are put back: what comes out goes on bit for bit."""
    import casync

    folder = hvd.broadcast_object(str(tmp_path / "state"))
    weights = tf.Variable(np.zeros(5000, np.float32), name="weights")
    draws = np.random.default_rng(rank).standard_normal((6, 5000)).astype(np.float32)

    @tf.function
    def step(mine):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(weights * mine)
        return hvd.DistributedGradientTape(tape, compression="onebit").gradient(value, weights)

    for turn in range(3):
        step(draws[turn])
    casync.save_state(folder)
    expected = [step(draws[turn]).numpy() for turn in range(3, 6)]
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    casync.load_state(folder)
    for turn in range(3, 6):
        np.testing.assert_array_equal(step(draws[turn]).numpy(), expected[turn - 3])


def test_batch_normalisation_over_all_ranks(mode, rank, size):
    import keras

    sizes = [3 + r for r in range(size)]
    batches = [np.random.default_rng(r).normal(r, 2.0, (n, 5, 4)).astype(np.float32) for r, n in enumerate(sizes)]
    whole = np.concatenate(batches).astype(np.float64)
    layer = hvd.SyncBatchNormalization(momentum=0.9)
    layer.build((None, 5, 4))
    plain = keras.layers.BatchNormalization(momentum=0.9, dtype="float64")
    plain.build((None, 5, 4))

    def outputs(layer, batch, weights):
        with tf.GradientTape() as tape:
            tape.watch(batch)
            result = layer(batch, training=True)
            value = tf.reduce_sum(result * weights)
        return result, tape.gradient(value, [batch, layer.gamma.value])

    weights = [np.random.default_rng(100 + r).normal(size=batch.shape) for r, batch in enumerate(batches)]
    expected, (of_batch, _) = outputs(plain, tf.constant(whole), tf.constant(np.concatenate(weights)))
    result, (gradient, _) = mode(lambda batch, w: outputs(layer, batch, w))(
        tf.constant(batches[rank]), tf.constant(weights[rank].astype(np.float32))
    )
    begin = sum(sizes[:rank])
    mine = slice(begin, begin + sizes[rank])
    np.testing.assert_allclose(result.numpy(), expected.numpy()[mine], rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(gradient.numpy(), of_batch.numpy()[mine], rtol=2e-2, atol=2e-4)
    np.testing.assert_allclose(layer.moving_mean.numpy(), plain.moving_mean.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)


@pytest.mark.usefixtures("several")
def test_groups_of_a_keras_optimizer_are_submitted_together(size):
    """Under the names that its gradients have: each waits for the others of its group."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    variables = model.trainable_variables
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[variables[:2], variables[2:]])
    optimizer.build(variables)

    @tf.function
    def step(*gradients):
        optimizer.apply(gradients, variables)

    given = [tf.ones(variable.shape) for variable in variables]
    operations = step.get_concrete_function(*given).graph.get_operations()
    inputs = [one.inputs[0].op for one in operations if one.type == "CasyncAllreduce"]
    assert [len(one.control_inputs) for one in inputs] == [1] * 4  # beside its own gradient

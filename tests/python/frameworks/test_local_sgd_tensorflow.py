"""LocalSGD and DiLoCo of casync.tensorflow in loops as users write them, beside all ranks in NumPy."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import casync.tensorflow as hvd  # noqa: E402

from casync.errors import InvalidArgumentError, NotAvailableError  # noqa: E402
from casync.relaxed.outer import Nesterov  # noqa: E402

EVERY, STEPS, RATE = 3, 8, 0.1


def data(rank):
    rng = np.random.default_rng(rank)
    return rng.standard_normal((STEPS, 6, 4)).astype(np.float32), rng.standard_normal((STEPS, 6, 2)).astype(np.float32)


def variables(rank):
    w = tf.Variable(np.random.default_rng(100 + rank).standard_normal((4, 2)), dtype=tf.float32, name="w")
    return w, tf.Variable([float(rank)] * 2, name="b"), tf.Variable([0.0] * 2, trainable=False, name="mean")


def make_step(w, b, mean):
    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            out = x @ w + b
            loss = tf.reduce_mean(tf.square(out - y))
        for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
            variable.assign_sub(RATE * gradient)
        mean.assign(0.5 * mean + 0.5 * tf.reduce_mean(out, 0))

    return train_step


def simulated(size, lr=1.0, momentum=0.0, steps=STEPS):
    anchor = [variable.numpy().astype(np.float64) for variable in variables(0)]
    own = [[each.copy() for each in anchor] for _ in range(size)]
    velocity = [np.zeros_like(each) for each in anchor]
    for step in range(1, steps + 1):
        for rank in range(size):
            (x, y), (w, b, mean) = data(rank), own[rank]
            x, y = x[step - 1].astype(np.float64), y[step - 1]
            out = x @ w + b
            off = 2 * (out - y) / y.size
            own[rank] = [w - RATE * x.T @ off, b - RATE * off.sum(0), 0.5 * mean + 0.5 * out.mean(0)]
        if step % EVERY == 0 or step == steps:
            means = [np.mean([values[i] for values in own], axis=0) for i in range(3)]
            for i in range(2):
                change = anchor[i] - means[i]
                velocity[i] = momentum * velocity[i] + change
                anchor[i] = anchor[i] - lr * (change + momentum * velocity[i])
            anchor[2] = means[2]
            own = [[each.copy() for each in anchor] for _ in range(size)]
    return anchor


@pytest.mark.parametrize("outer", [None, (0.5, 0.5)])
def test_a_loop_with_a_graph_for_a_step(outer, rank, size):
    of = variables(rank)
    made = hvd.LocalSGD(list(of), EVERY) if outer is None else hvd.DiLoCo([*of], Nesterov(*outer), sync_every=EVERY)
    step, (xs, ys) = make_step(*of), data(rank)
    with made as local:
        for x, y in zip(xs, ys, strict=True):
            step(x, y)
            local.step()
    for variable, wanted in zip(of, simulated(size, *(outer or ())), strict=True):
        np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_a_step_in_a_graph_is_refused_at_once(rank, size):
    """It would be counted but once, when the function is traced."""
    local = hvd.LocalSGD(list(variables(rank)), 100)

    @tf.function
    def train_step():
        local.step()

    with pytest.raises(NotAvailableError, match=r"outside of a tf\.function"):
        train_step()


def test_fragments_that_are_lists(rank, size):
    w, b, mean = variables(rank)
    with hvd.DiLoCo([[w], [b, mean]], Nesterov(0.7, 0.0), sync_every=4, compression="always(onebit)") as local:
        step, (xs, ys) = make_step(w, b, mean), data(rank)
        for x, y in zip(xs, ys, strict=True):
            step(x, y)
            local.step()
    for everyones in zip(*hvd.allgather_object([w.numpy(), b.numpy(), mean.numpy()]), strict=True):
        for other in everyones:
            np.testing.assert_array_equal(other, everyones[0])


def test_what_is_no_list_of_variables_is_refused(rank):
    for wrong in (variables(rank)[0], [tf.constant(1.0)], []):
        with pytest.raises(InvalidArgumentError, match="give a list of variables"):
            hvd.LocalSGD(wrong, 4)

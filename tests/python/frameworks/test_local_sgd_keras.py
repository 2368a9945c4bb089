"""casync.keras.callbacks.LocalSGD and DiLoCo in programs as users write them, beside all ranks in one process."""

import functools
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")
import casync.keras as hvd  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers, optimizers  # noqa: E402

from casync.errors import InvalidArgumentError, NotAvailableError  # noqa: E402
from casync.relaxed.outer import Nesterov  # noqa: E402
from support import keras_training as training  # noqa: E402

STEPS = 6


def make_model(seed=0):
    """With a frozen layer, and moving means."""
    keras.utils.set_random_seed(seed)
    frozen = layers.Dense(24, trainable=False, name="frozen")
    normed = [layers.Dense(40, "tanh", name="hidden"), layers.BatchNormalization(name="norm")]
    return keras.Sequential([keras.Input((40,)), frozen, *normed, layers.Dense(3, name="out")])


def sgd(**more):
    return optimizers.SGD(0.05, momentum=0.9, **more)


def shares(size, steps=STEPS):
    data = training.make_data(size, steps)
    return [training.share(data, rank, size) for rank in range(size)]


class Simulated:
    """All ranks in this process."""

    def __init__(self, size, every, lr=1.0, momentum=0.0, make=sgd, passes=1):
        self.models = [make_model() for _ in range(size)]
        for model in self.models:
            model.compile(optimizer=make(), loss="mse", run_eagerly=True)
        self.every, self.lr, self.momentum, self.passes = every, lr, momentum, passes
        self.step = self.done = 0
        self.anchor = self.models[0].get_weights()
        self.velocity = [np.zeros_like(each) for each in self.anchor]
        self.is_trained = [weight.trainable for weight in self.models[0].weights]

    def fit(self, data, steps=STEPS, epochs=1):
        batches = [[np.split(each, steps) for each in own] for own in data]
        for _ in range(epochs):
            for number in range(steps):
                for model, (x, y) in zip(self.models, batches, strict=True):
                    model.train_on_batch(x[number], y[number])
                self.step += 1
                if self.step % (self.every * self.passes) == 0:
                    self.round()
        return self

    def round(self):
        self.done = self.step
        everyones = zip(*(model.get_weights() for model in self.models), strict=True)
        for place, values in enumerate(everyones):
            mean = np.mean(np.array(values, np.float64), 0)
            if self.is_trained[place]:
                change = self.anchor[place] - mean
                self.velocity[place] = self.momentum * self.velocity[place] + change
                mean = self.anchor[place] - self.lr * (change + self.momentum * self.velocity[place])
            self.anchor[place] = mean.astype(np.float32)
        for model in self.models:
            model.set_weights(self.anchor)

    def end(self):
        if self.step > self.done:
            self.round()
        return self.anchor


@functools.cache
def simulated(size, every, lr=1.0, momentum=0.0, *, steps=STEPS, epochs=1, make=sgd, passes=1, ended=True):
    """The weights in the end, or those of the last round. One rank computes for all."""
    found = None
    if hvd.rank() == 0:
        ranks = Simulated(size, every, lr, momentum, make, passes).fit(shares(size, steps), steps, epochs)
        found = ranks.end() if ended else ranks.anchor
    return hvd.broadcast_object(found)


def fit(rank, size, callback, *more, make=sgd, data=None, compiled=None, **how):
    model = make_model(rank)
    model.compile(optimizer=make(), loss="mse", **({"run_eagerly": True} | (compiled or {})))
    own = (shares(size) if data is None else data)[rank]
    return model, training.fit(model, own, callbacks=[callback, *more], **how)


def assert_close(model, wanted, tolerance=2e-4):
    for mine, theirs in zip(model.get_weights(), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    training.assert_same_everywhere(model.get_weights())


def test_local_sgd(rank, size):
    model, _ = fit(rank, size, hvd.callbacks.LocalSGD(4))
    assert_close(model, simulated(size, 4))


@pytest.mark.slow
def test_diloco_over_epochs_with_validation(rank, size):
    """Ranks validate the global weights, and so agree on when to stop and on which weights were best."""
    stops = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True, min_delta=0.01)
    slows = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)
    held_out = training.make_data(1, 2, seed=7)
    for callbacks in ([], [stops, slows]):
        local = hvd.callbacks.DiLoCo(Nesterov(0.5, 0.5), 4)
        model, history = fit(rank, size, local, *callbacks, epochs=3, validation_data=held_out)
        training.assert_same_everywhere(model.get_weights())
        training.assert_same_everywhere([np.array(history.history["val_loss"])])
        if not callbacks:
            assert_close(model, simulated(size, 4, 0.5, 0.5, epochs=3), 2e-3)
    best = min(history.history["val_loss"])
    np.testing.assert_allclose(model.evaluate(*held_out, verbose=0), best, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_best_weights_stay_wherever_early_stopping_stands(place, rank, size):
    """Here each rank's last epoch is its worst."""
    stops = keras.callbacks.EarlyStopping(monitor="loss", mode="max", restore_best_weights=True, patience=9)
    local = hvd.callbacks.LocalSGD(4)
    model = make_model(rank)
    model.compile(optimizer=sgd(), loss="mse", run_eagerly=True)
    callbacks = [local, stops] if place == 0 else [stops, local]
    training.fit(model, shares(size)[rank], epochs=2, callbacks=[hvd.callbacks.MetricAverageCallback(), *callbacks])
    if place == 0:
        assert_close(model, simulated(size, 4, ended=False))
    training.assert_same_everywhere(model.get_weights())


def test_several_steps_in_one_execution(rank, size):
    model, _ = fit(rank, size, hvd.callbacks.LocalSGD(3), compiled={"steps_per_execution": 3, "run_eagerly": False})
    assert_close(model, simulated(size, 3))
    with pytest.raises(InvalidArgumentError, match="at most sync_every steps"):
        fit(rank, size, hvd.callbacks.LocalSGD(2), compiled={"steps_per_execution": 3})


def test_accumulation_counts_steps_of_the_optimizer(rank, size):
    make = functools.partial(sgd, gradient_accumulation_steps=2)
    model, _ = fit(rank, size, hvd.callbacks.LocalSGD(2), make=make)
    assert_close(model, simulated(size, 2, make=make, passes=2))


@pytest.mark.nightly
def test_a_moving_average_of_the_optimizers_has_the_last_word(rank, size):
    model, _ = fit(rank, size, hvd.callbacks.LocalSGD(4), make=lambda: sgd(use_ema=True, ema_momentum=0.5))
    training.assert_same_everywhere(model.get_weights())
    plain, _ = fit(rank, size, hvd.callbacks.LocalSGD(4))
    assert not np.allclose(model.get_weights()[2], plain.get_weights()[2])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.nightly)])
def test_mixed_precision(policy, rank, size):
    keras.config.set_dtype_policy(policy)
    try:
        callback = hvd.callbacks.DiLoCo(Nesterov(0.7, 0.0), 3, compression="onebit")
        model, history = fit(rank, size, callback, epochs=3)
    finally:
        keras.config.set_dtype_policy("float32")
    training.assert_same_everywhere(model.get_weights())
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert callback.local_steps.rounds.step_count == int(model.optimizer.iterations)


def test_a_second_fit_goes_on_or_begins_anew(rank, size):
    callback = hvd.callbacks.DiLoCo(Nesterov(0.5, 0.5), 4)
    model, _ = fit(rank, size, callback)
    first = callback.local_steps
    training.fit(model, shares(size)[rank], callbacks=[callback])
    assert callback.local_steps is first
    model.layers[0].trainable = True
    model.compile(optimizer=sgd(), loss="mse", run_eagerly=True)
    before = model.get_weights()[0]
    training.fit(model, shares(size)[rank], callbacks=[callback])
    assert callback.local_steps is not first
    assert not np.array_equal(before, model.get_weights()[0])
    training.assert_same_everywhere(model.get_weights())
    second = callback.local_steps
    model.set_weights(make_model(5).get_weights())
    training.fit(model, shares(size)[rank], callbacks=[callback])
    assert callback.local_steps is not second
    training.assert_same_everywhere(model.get_weights())


def test_uneven_data(rank, size):
    data = shares(size)
    data[-1] = [each[: 3 * training.ROWS] for each in data[-1]]
    model, _ = fit(rank, size, hvd.callbacks.LocalSGD(4, compression="always(fp16)"), data=data)
    training.assert_same_everywhere(model.get_weights())


def test_a_model_that_was_saved_and_loaded(rank, size, tmp_path_factory):
    folder = hvd.broadcast_object(str(tmp_path_factory.mktemp("keras")), 0)
    path = f"{folder}/{rank}.keras"
    saves = keras.callbacks.ModelCheckpoint(path)
    fit(rank, size, hvd.callbacks.LocalSGD(4), saves)
    loaded = keras.models.load_model(path)
    training.assert_same_everywhere(loaded.get_weights())
    assert_close(loaded, simulated(size, 4, ended=False))
    training.fit(loaded, shares(size)[rank], callbacks=[hvd.callbacks.LocalSGD(4)])
    training.assert_same_everywhere(loaded.get_weights())
    hvd.barrier()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_loop_of_ones_own_and_fragments(rank, size):
    model, optimizer = make_model(rank), sgd()
    local = hvd.DiLoCo([model.layers[0], *model.layers[1:]], Nesterov(0.7, 0.5), 4)

    @tf.function
    def step(x, y, inside=False):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        if inside:
            local.step()

    with local:
        for x, y in zip(*(np.split(each, STEPS) for each in shares(size)[rank]), strict=True):
            step(x, y)
            local.step()
    training.assert_same_everywhere(model.get_weights())
    with pytest.raises(NotAvailableError, match=r"outside of a tf\.function"):
        step(x, y, inside=True)


def test_what_cannot_be_is_refused_by_name(several, rank, size):
    with pytest.raises(InvalidArgumentError, match="compiled with a DistributedOptimizer"):
        fit(rank, size, hvd.callbacks.LocalSGD(4), make=lambda: hvd.DistributedOptimizer(sgd()))
    unbuilt = keras.Sequential([layers.Dense(3)])
    unbuilt.compile(optimizer=sgd(), loss="mse")
    with pytest.raises(InvalidArgumentError, match=r"call model\.build\(shape\)"):
        training.fit(unbuilt, shares(size)[rank], callbacks=[hvd.callbacks.LocalSGD(4)])
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    with pytest.raises(InvalidArgumentError, match="as SwapEMAWeights does"):
        fit(rank, size, hvd.callbacks.LocalSGD(4), swaps, make=lambda: sgd(use_ema=True), epochs=2)

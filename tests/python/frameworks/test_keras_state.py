"""casync.keras on TensorFlow: models that are saved and loaded, mixed precision, and callbacks."""

import logging
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")
import casync.keras as hvd  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers, optimizers  # noqa: E402

import casync  # noqa: E402
from casync.errors import InvalidArgumentError  # noqa: E402
from support import keras_training as training  # noqa: E402


def sgd(**arguments):
    return optimizers.SGD(0.05, momentum=0.9, **arguments)


@pytest.fixture
def folder(tmp_path_factory, rank):
    path = hvd.broadcast_object(str(tmp_path_factory.mktemp("keras")), 0)
    yield path
    hvd.barrier()
    if rank == 0:
        shutil.rmtree(path, ignore_errors=True)


def share(rank, size, steps=5):
    return training.share(training.make_data(size, steps), rank, size)


# --- save and load ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: optimizers.Adam(0.01), sgd], ids=["adam", "sgd"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_saved_model_is_keras_own(make, passes, rank, size, folder):
    """Also without us: its class, its configuration and its slots."""
    distributed = hvd.DistributedOptimizer(make(), backward_passes_per_step=passes)
    model = training.train(rank, size, distributed, steps=6)
    path = f"{folder}/model{rank}.keras"
    model.save(path)
    assert distributed.get_config() == {**make().get_config(), "name": distributed.name}
    plain, ours = keras.models.load_model(path), hvd.load_model(path)
    assert type(plain.optimizer) is type(make()), "the class that Keras has"
    assert not hasattr(plain.optimizer, "_casync") and hasattr(ours.optimizer, "_casync")
    assert isinstance(ours.optimizer, type(make()))
    slots = [np.array(variable) for variable in model.optimizer.variables]
    for loaded in (plain, ours):
        training.assert_same_bits(loaded, model)
        for mine, saved in zip(loaded.optimizer.variables, slots, strict=True):
            np.testing.assert_array_equal(np.array(mine), saved)
    again = type(distributed).from_config(distributed.get_config())
    assert again.get_config() == distributed.get_config()
    assert isinstance(again, type(make())) and again._casync[0].settings == distributed._casync[0].settings
    weight = keras.Variable(np.zeros(3, np.float32), name="again")
    for _ in range(passes):
        again.apply([np.full(3, rank + 1.0, np.float32)], [weight])
    for other in hvd.allgather_object(np.array(weight).tobytes()):
        assert other == np.array(weight).tobytes() != bytes(12)


def test_a_model_that_was_not_compiled_is_loaded(rank, folder):
    path = f"{folder}/model{rank}.keras"
    model = training.make_model()
    model.save(path)
    training.assert_same_bits(hvd.load_model(path), model)


@pytest.mark.parametrize("codec", ["none", "onebit", "dgc(ratio=0.05)"])
def test_training_resumes_bit_for_bit(codec, rank, size, folder):
    def job(steps, model=None):
        if model is None:
            model = training.make_model()
            model.compile(optimizer=hvd.DistributedOptimizer(sgd(), compression=codec), loss="mse")
        x, y = share(rank, size, 6)
        rows = slice(steps.start * training.ROWS, steps.stop * training.ROWS)
        training.fit(model, (x[rows], y[rows]))
        return model

    whole = job(range(6))
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    half = job(range(3))
    half.save(f"{folder}/model{rank}.keras")
    casync.save_state(f"{folder}/state")
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    loaded = hvd.load_model(f"{folder}/model{rank}.keras", compression=codec)
    casync.load_state(f"{folder}/state")
    training.assert_same_bits(job(range(3, 6), loaded), whole)


def test_load_model_with_classes_of_ones_own(rank, size, folder):
    class Mine(optimizers.SGD):
        pass

    class Layer(layers.Dense):
        pass

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((40,)), Layer(3)])
    model.compile(optimizer=hvd.DistributedOptimizer(Mine(0.1)), loss="mse")
    training.fit(model, share(rank, size))
    model.save(f"{folder}/model{rank}.keras")
    loaded = hvd.load_model(f"{folder}/model{rank}.keras", [Mine], {"Layer": Layer}, hvd.Compression.fp16)
    assert isinstance(loaded.optimizer, Mine) and isinstance(loaded.layers[0], Layer)
    training.fit(loaded, share(rank, size))
    training.assert_same_everywhere(training.weights(loaded))


def test_an_optimizer_that_was_built_before_it_is_wrapped(rank, size):
    for passes in (1, 2):
        model = training.make_model()
        inner = optimizers.SGD(0.05, momentum=0.9)
        inner.build(model.trainable_variables)
        distributed = hvd.DistributedOptimizer(
            inner, backward_passes_per_step=passes, average_aggregated_gradients=True
        )
        assert distributed is inner
        model.compile(optimizer=distributed, loss="mse")
        training.fit(model, share(rank, size, 4))
        wanted = training.make_model()
        wanted.compile(optimizer=sgd(), loss="mse")
        rows = training.ROWS * size * (passes if size > 1 else 1)
        training.fit(wanted, training.make_data(size, 4), rows)
        training.assert_close(model, wanted)


def test_wrapping_twice_is_wrapping_once(rank, size):
    twice = hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(), compression="fp16"))
    training.assert_same_bits(
        training.train(rank, size, twice), training.train(rank, size, hvd.DistributedOptimizer(sgd()))
    )


# --- mixed precision --------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed():
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_mixed_float16(explicit, codec, mixed, rank, size, folder):
    """Explicit, or as `compile` puts a LossScaleOptimizer around ours."""
    optimizer = optimizers.LossScaleOptimizer(sgd()) if explicit else sgd()
    model = training.train(rank, size, hvd.DistributedOptimizer(optimizer, compression=codec))
    assert type(model.optimizer) is optimizers.LossScaleOptimizer
    assert int(model.optimizer.iterations) == 5 and float(model.optimizer.dynamic_scale) == 2.0**15
    training.assert_same_everywhere([*training.weights(model), *(v.numpy() for v in model.optimizer.variables)])
    if codec == "none":
        training.assert_close(model, training.joined(size, sgd()), rtol=0.02, atol=0.003)
    model.save(f"{folder}/model{rank}.keras")
    loaded = hvd.load_model(f"{folder}/model{rank}.keras", compression=codec)
    assert hasattr(loaded.optimizer.inner_optimizer, "_casync")
    training.fit(loaded, share(rank, size))
    training.assert_same_everywhere(training.weights(loaded))


@pytest.mark.parametrize("codec", ["none", "onebit", "dgc(ratio=0.05)"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_an_overflow_on_one_rank_is_skipped_by_all(codec, in_graph, rank, size):
    """Weights, slots and what codecs keep are as if that step had not been."""

    def run(bad_step):
        hvd.shutdown()
        hvd.init(timeout_s=20.0)
        variable = keras.Variable(np.zeros(5000, np.float32), name="v")
        optimizer = optimizers.LossScaleOptimizer(sgd(), initial_scale=8.0)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=codec)
        optimizer.build([variable])
        step = lambda gradient: optimizer.apply([gradient], [variable])  # noqa: E731
        apply = tf.function(step) if in_graph else step
        rng = np.random.default_rng(rank)
        for number in range(4):
            gradient = rng.standard_normal(5000).astype(np.float32)
            if bad_step == number:
                overflowed = np.where(np.arange(5000) == 7, np.inf, gradient) if rank == 0 else gradient
                apply(tf.constant(overflowed.astype(np.float32)))
            # A scale that halves must not show: the same gradient, at whatever scale it is now.
            apply(tf.constant(gradient) * optimizer.dynamic_scale)
        return optimizer, variable.numpy()

    skipped, ours = run(2)
    plain, theirs = run(None)
    np.testing.assert_array_equal(ours, theirs)
    training.assert_same_everywhere([ours])
    assert int(skipped.iterations) == int(plain.iterations) == 4
    assert (float(skipped.dynamic_scale), float(plain.dynamic_scale)) == (4.0, 8.0)


def test_other_loss_scale_optimizers_are_as_they_were(rank, size):
    hvd.DistributedOptimizer(sgd())
    variable = keras.Variable(np.zeros(3, np.float32), name="v")
    alone = optimizers.LossScaleOptimizer(optimizers.SGD(1.0), initial_scale=2.0)
    alone.build([variable])
    if rank == 0:
        alone.apply([tf.constant([2.0, 4.0, 6.0])], [variable])
        np.testing.assert_array_equal(variable.numpy(), [-1, -2, -3])


# --- callbacks --------------------------------------------------------------------------------------------------------


class Rates(keras.callbacks.Callback):
    """Learning rate and momentum while each batch is trained on."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append((float(self.model.optimizer.learning_rate), float(self.model.optimizer.momentum)))


def rates(rank, size, callbacks, epochs, steps=4, momentum=0.0, **how):
    model, seen = training.make_model(), Rates()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=momentum)), loss="mse", **how)
    history = training.fit(model, share(rank, size, steps), epochs=epochs, callbacks=[*callbacks, seen])
    return seen.seen, history.history, model


def test_warmup_at_each_batch(rank, size, capsys):
    callback = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2, verbose=1)
    seen, history, _ = rates(rank, size, [callback], epochs=3)
    batches = np.arange(1, 9) / 4  # in epochs, after the batch
    wanted = [*(0.1 / size * (batches * (size - 1) / 2 + 1)), *[0.1] * 4]
    np.testing.assert_allclose([rate for rate, _ in seen], wanted, rtol=1e-5)
    np.testing.assert_allclose(history["lr"], [wanted[3], 0.1, 0.1], rtol=1e-5)
    assert "Epoch 2: finished gradual learning rate warmup to 0.1." in capsys.readouterr().out


def test_schedules(rank, size):
    of = hvd.callbacks.LearningRateScheduleCallback
    seen, _, _ = rates(rank, size, [of(0.1, lambda epoch: 2.0**-epoch, start_epoch=1, end_epoch=3)], epochs=4)
    np.testing.assert_allclose([rate for rate, _ in seen], np.repeat([0.1, 0.05, 0.025, 0.025], 4), rtol=1e-6)
    seen, _, _ = rates(rank, size, [of(0.1, 0.5, start_epoch=1)], epochs=2)
    np.testing.assert_allclose([rate for rate, _ in seen], np.repeat([0.1, 0.05], 4), rtol=1e-6)
    seen, _, _ = rates(rank, size, [of(0.1, lambda epoch: 1 - epoch / 4, staircase=False)], epochs=2)
    np.testing.assert_allclose([rate for rate, _ in seen], 0.1 * (1 - np.arange(8) / 16), rtol=1e-5)
    seen, _, _ = rates(rank, size, [of(0.1, lambda e: 1 - e / 4, staircase=False, steps_per_epoch=8)], epochs=1)
    np.testing.assert_allclose([rate for rate, _ in seen], 0.1 * (1 - np.arange(4) / 32), rtol=1e-5)
    with pytest.raises(InvalidArgumentError, match="Parameter `initial_lr` is required"):
        of(None, 0.5)


def test_steps_that_fit_does_not_know(rank, size):
    x, y = share(rank, size, 2)
    model = training.make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    callback = hvd.callbacks.LearningRateWarmupCallback(0.1)
    batches = ((x[i : i + 8], y[i : i + 8]) for i in (0, 8))
    with pytest.raises(InvalidArgumentError, match="specify the steps_per_epoch parameter to the LearningRateWarmup"):
        model.fit(batches, callbacks=[callback], verbose=0)


def test_momentum_correction(rank, size):
    """For the batch in which the rate changes, where the step reads the momentum at all."""
    callback = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 2.0**-epoch)
    seen, _, model = rates(rank, size, [callback], epochs=2, momentum=0.8, run_eagerly=True)
    np.testing.assert_allclose([momentum for _, momentum in seen], [0.8] * 4 + [0.4] + [0.8] * 3, rtol=1e-6)
    assert model.optimizer.momentum == 0.8


def test_momentum_correction_in_a_graph_does_nothing_and_says_so(rank, size, caplog):
    with caplog.at_level(logging.WARNING, "casync"):
        callback = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 2.0**-epoch)
        seen, _, _ = rates(rank, size, [callback], epochs=3, momentum=0.8)
    assert {momentum for _, momentum in seen} == {0.8}
    assert caplog.text.count("momentum_correction does nothing") == 1


def test_metrics_are_averaged(rank, size):
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["number"], self.mine = float(rank), logs["loss"]

    own = Own()
    callbacks = [own, hvd.callbacks.MetricAverageCallback()]
    _, history, _ = rates(rank, size, callbacks, epochs=1)
    assert history["number"] == [(size - 1) / 2]
    np.testing.assert_allclose(history["loss"][0], np.mean(hvd.allgather_object(own.mine)), rtol=1e-12)


@pytest.mark.parametrize("is_built", [False, True])
def test_broadcast_of_weights_and_slots(is_built, rank, size):
    """Of a model that is built before its first batch; of another one after it."""
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([*([keras.Input((40,))] if is_built else []), layers.Dense(5), layers.Dense(3)])
    optimizer = optimizers.Adam(0.01 * (rank + 1))
    if is_built:
        optimizer.build(model.trainable_variables)
        for variable in optimizer.variables[2:]:
            variable.assign(np.full(variable.shape, rank + 1.0))
    root = size - 1
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root)
    x, y = share(rank, size, 1)
    training.fit(model, (x, y), callbacks=[callback])
    training.fit(model, (x, y), callbacks=[callback])
    training.assert_same_everywhere([*training.weights(model), *(v.numpy() for v in model.optimizer.variables)])
    assert float(optimizer.learning_rate) == pytest.approx(0.01 * size)


def test_local_variables_are_not_broadcast(rank, size):
    model = training.make_model(seed=rank)
    before = training.weights(model)
    model.compile(optimizer=hvd.DistributedOptimizer(optimizers.SGD(0.0)), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[model.layers[0].kernel])
    callback.register_local_var(model.layers[1].kernel)
    training.fit(model, share(rank, size, 1), callbacks=[callback])
    after = training.weights(model)
    for i in (0, 2):
        np.testing.assert_array_equal(after[i], before[i])


def test_best_model_checkpoint(rank, size, folder):
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="min")
    assert callback.save_best_only and isinstance(callback, keras.callbacks.ModelCheckpoint)
    callback.filepath = f"{folder}/best{rank}.keras"
    model = training.make_model()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizers.SGD(0.01)), loss="mse")
    training.fit(model, share(rank, size), epochs=2, callbacks=[callback])
    training.assert_same_bits(hvd.load_model(callback.filepath), model)


# --- scripts of Horovod's ---------------------------------------------------------------------------------------------


def test_the_keras_example_of_horovods_documentation(rank, size, folder):
    """As such scripts are written, after s/horovod/casync/; with `horovod.tensorflow.keras`."""
    import casync.tensorflow.keras as hvd

    hvd.init()
    images, labels = np.random.default_rng(rank).random((64, 8, 8)), np.arange(64) % 10
    dataset = tf.data.Dataset.from_tensor_slices((images[..., None].astype(np.float32), labels.astype(np.int64)))
    dataset = dataset.repeat().shuffle(100).batch(16)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
            tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    scaled_lr = 0.001 * hvd.size()
    opt = tf.optimizers.Adam(scaled_lr)
    opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
    model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
    ]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(f"{folder}/checkpoint-{{epoch}}.keras"))
    model.fit(dataset, steps_per_epoch=2, callbacks=callbacks, epochs=4, verbose=0)
    training.assert_same_everywhere(training.weights(model))
    hvd.barrier()
    loaded = hvd.load_model(f"{folder}/checkpoint-4.keras")
    training.assert_same_bits(loaded, model)


def test_a_script_of_horovod_keras(rank, size, folder):
    """An older one: the learning rate times the ranks, a schedule in pieces, and a best model."""
    import casync.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = training.make_model(seed=rank)
    opt = keras.optimizers.SGD(learning_rate=0.01 * hvd.size(), momentum=0.9)
    compression = hvd.Compression.fp16
    opt = hvd.DistributedOptimizer(opt, compression=compression)
    model.compile(loss="mse", optimizer=opt, metrics=["mae"])
    of = hvd.callbacks.LearningRateScheduleCallback
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        of(initial_lr=0.01 * hvd.size(), multiplier=1.0, start_epoch=1, end_epoch=2),
        of(initial_lr=0.01 * hvd.size(), multiplier=1e-1, start_epoch=2),
        keras.callbacks.ReduceLROnPlateau(patience=10, verbose=0),
    ]
    checkpoint = hvd.callbacks.BestModelCheckpoint()
    checkpoint.filepath = f"{folder}/best{hvd.rank()}.keras"
    x, y = share(rank, size)
    model.fit(x, y, 8, epochs=3, validation_data=(x, y), callbacks=[*callbacks, checkpoint], verbose=0)
    score = hvd.allreduce(model.evaluate(x, y, verbose=0)[0], name="score")
    assert np.isfinite(score)
    training.assert_same_everywhere(training.weights(model))

"""casync.keras with KERAS_BACKEND=torch, on several ranks: started by ../test_backends.py."""

import sys

import casync.keras as hvd
import casync.torch
import keras
import numpy as np
import pytest
import torch
from keras import layers, optimizers

import casync
from casync.relaxed.outer import Nesterov
from support import keras_training as training

CODECS = ["none", "fp16", "onebit", "terngrad(bits=2)", "powersgd(rank=2, start_step=1)", "dgc(ratio=0.05)"]


def sgd(**arguments):
    return optimizers.SGD(0.05, momentum=0.9, **arguments)


def numbers(variables):
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


@pytest.mark.parametrize(
    "make",
    [sgd, lambda: optimizers.Adam(0.01), lambda: optimizers.Adam(0.01, clipnorm=0.1)],
    ids=["sgd", "adam", "clipnorm"],
)
@pytest.mark.parametrize("predivide", [1.0, 2.0])
def test_fit_is_as_by_one_process_on_the_joined_batch(make, predivide, rank, size):
    model = training.train(rank, size, hvd.DistributedOptimizer(make(), gradient_predivide_factor=predivide))
    training.assert_close(model, training.joined(size, make()), rtol=2e-3, atol=2e-4)
    training.assert_same_everywhere([*training.weights(model), *numbers(model.optimizer.variables)])


def test_backward_passes_per_step(rank, size):
    distributed = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2, average_aggregated_gradients=True)
    model = training.train(rank, size, distributed, steps=6)
    wanted = training.make_model()
    wanted.compile(optimizer=sgd(), loss="mse")
    training.fit(wanted, training.make_data(size, 6), training.ROWS * size * 2)
    training.assert_close(model, wanted)


@pytest.mark.parametrize("codec", CODECS)
def test_weights_are_torchs_bit_for_bit(codec, rank, size):
    how = {"momentum": 0.9} if codec.startswith("dgc") else {}
    rows = np.random.default_rng(100 + rank).standard_normal((6, 5000)).astype(np.float32)
    parameter = torch.nn.Parameter(torch.zeros(5000))
    inner = torch.optim.SGD([parameter], lr=1.0, **how)
    theirs = casync.torch.DistributedOptimizer(inner, [("p", parameter)], compression=codec)
    for row in rows:
        theirs.zero_grad()
        (parameter * torch.from_numpy(row)).sum().backward()
        theirs.step()
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    variable = keras.Variable(np.zeros(5000, np.float32), name="p")
    ours = hvd.DistributedOptimizer(optimizers.SGD(1.0, **how), compression=codec)
    with torch.no_grad():
        for row in rows:
            ours.apply([torch.tensor(row)], [variable])
    (mine,) = numbers([variable])
    np.testing.assert_array_equal(mine, parameter.detach().numpy())
    training.assert_same_everywhere([mine])


def test_dgc_leaves_the_momentum_of_what_it_does_not_compress(rank, size):
    model = training.train(rank, size, hvd.DistributedOptimizer(sgd(), compression={"*/kernel": "none", "*": "dgc"}))
    training.assert_close(model, training.joined(size, sgd()))


def test_variables_without_a_gradient(rank, size):
    used, unused = (keras.Variable(np.zeros(3, np.float32), name=name) for name in ("used", "unused"))
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    with torch.no_grad(), pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([torch.full((3,), float(rank)), None], [used, unused])
    np.testing.assert_allclose(numbers([used])[0], -(size - 1) / 2, rtol=1e-6)


def test_an_overflow_on_one_rank_is_skipped_by_all(rank, size):
    variable = keras.Variable(np.zeros(5000, np.float32), name="v")
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(1.0), initial_scale=8.0)
    optimizer = hvd.DistributedOptimizer(optimizer, compression="onebit")
    optimizer.build([variable])
    with torch.no_grad():
        optimizer.apply([torch.full((5000,), float("inf") if rank == 0 else 1.0)], [variable])
        assert not numbers([variable])[0].any() and int(optimizer.iterations) == 0
        optimizer.apply([torch.full((5000,), 4.0)], [variable])
    np.testing.assert_array_equal(numbers([variable])[0], -1)


def test_mixed_float16(rank, size):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = training.train(rank, size, hvd.DistributedOptimizer(sgd()))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert type(model.optimizer) is optimizers.LossScaleOptimizer
    training.assert_same_everywhere(training.weights(model))


def test_local_layers(rank, size):
    data = training.share(training.make_data(size, 1), rank, size)
    model = training.make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        optimizers.SGD(0.05), local_layers=[model.layers[1]], scale_local_gradients=False
    )
    model.compile(optimizer=optimizer, loss="mse")
    training.fit(model, data)
    alone = training.make_model()
    alone.compile(optimizer=optimizers.SGD(0.05), loss="mse")
    training.fit(alone, data)
    for mine, own in list(zip(training.weights(model), training.weights(alone), strict=True))[2:]:
        np.testing.assert_allclose(mine, own, rtol=1e-5, atol=1e-7)


def test_training_resumes_bit_for_bit(rank, size, tmp_path_factory):
    folder = hvd.broadcast_object(str(tmp_path_factory.mktemp("keras")), 0)
    x, y = training.share(training.make_data(size, 6), rank, size)

    def job(first, last, model=None):
        if model is None:
            model = training.make_model()
            model.compile(optimizer=hvd.DistributedOptimizer(optimizers.Adam(0.01), compression="onebit"), loss="mse")
        rows = slice(first * training.ROWS, last * training.ROWS)
        training.fit(model, (x[rows], y[rows]))
        return model

    whole = job(0, 6)
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    job(0, 3).save(f"{folder}/model{rank}.keras")
    casync.save_state(f"{folder}/state")
    hvd.shutdown()
    hvd.init(timeout_s=20.0)
    loaded = hvd.load_model(f"{folder}/model{rank}.keras", compression="onebit")
    assert isinstance(loaded.optimizer, optimizers.Adam)
    casync.load_state(f"{folder}/state")
    training.assert_same_bits(job(3, 6, loaded), whole)
    hvd.barrier()


def test_callbacks(rank, size):
    """With torch the momentum is read in every step, so its correction works."""
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append((float(self.model.optimizer.learning_rate), self.model.optimizer.momentum))

    keras.utils.set_random_seed(rank)
    model = keras.Sequential([layers.Dense(5), layers.Dense(3)])
    model.compile(optimizer=hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.8)), loss="mse")
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 2.0**-epoch)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), schedule]
    data = training.share(training.make_data(size, 2), rank, size)
    history = training.fit(model, data, epochs=2, callbacks=[*callbacks, Watch()])
    np.testing.assert_allclose(seen, [(0.1, 0.8)] * 2 + [(0.05, 0.4), (0.05, 0.8)], rtol=1e-6)
    training.assert_same_everywhere([*training.weights(model), history.history["loss"]])


def test_tensorflow_was_not_needed():
    assert keras.backend.backend() == "torch" and "casync.tensorflow" not in sys.modules


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_diloco_in_fit(codec, rank, size):
    """With validation and accumulation; without a codec as ranks that are averaged after every step."""
    callback = hvd.callbacks.DiLoCo(Nesterov(1.0, 0.0), 2 if codec == "onebit" else 1, compression=codec)
    model = training.make_model(rank)
    optimizer = optimizers.SGD(0.05, gradient_accumulation_steps=2)
    model.compile(optimizer=optimizer, loss="mse")
    data = training.make_data(size, 6)
    training.fit(model, training.share(data, rank, size), epochs=2, callbacks=[callback], validation_data=data)
    training.assert_same_everywhere(training.weights(model))
    assert callback.local_steps.rounds.step_count == 6
    if codec == "none":
        wanted = training.make_model()
        wanted.compile(optimizer=optimizers.SGD(0.05), loss="mse")
        training.fit(wanted, data, training.ROWS * size * 2, epochs=2)
        training.assert_close(model, wanted)

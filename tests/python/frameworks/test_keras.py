"""casync.keras on TensorFlow: training on several ranks against training on the joined batch."""

import copy
import logging
import time
from types import SimpleNamespace

import casync.torch
import numpy as np
import pytest
import torch

pytest.importorskip("tensorflow")
pytest.importorskip("keras")
import casync.keras as hvd  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from casync.keras.names import names_of  # noqa: E402
from keras import layers, optimizers  # noqa: E402

from casync.errors import InvalidArgumentError, MismatchError, NotAvailableError  # noqa: E402
from casync.session import default  # noqa: E402
from support import keras_training as training  # noqa: E402

CODECS = [
    "none", "fp16", "bf16", "onebit", "tbq", "terngrad(bits=2)", "threelc", "powersgd(rank=2, start_step=1)",
    "graddrop(drop=0.9)", "dgc(ratio=0.05)", "adacomp", "auto(onebit, fp16)",
]  # fmt: skip
STEPS, NUMEL = 6, 5000


def sgd(**arguments):
    return optimizers.SGD(0.05, momentum=0.9, **arguments)


# --- as the joined batch ----------------------------------------------------------------------------------------------


def test_fit_is_sgd_on_the_mean_gradient_in_float64(rank, size):
    """One layer, whose gradients NumPy has in a line."""
    data = training.make_data(size)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((40,)), layers.Dense(3, name="only")])
    w, b = (array.astype(np.float64) for array in training.weights(model))
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    training.fit(model, training.share(data, rank, size))
    mw, mb = np.zeros_like(w), np.zeros_like(b)
    for x, y in zip(*(np.split(array.astype(np.float64), 5) for array in data), strict=True):
        off = 2 * (x @ w + b - y) / y.size
        mw, mb = 0.9 * mw - 0.05 * x.T @ off, 0.9 * mb - 0.05 * off.sum(0)
        w, b = w + mw, b + mb
    for mine, wanted in zip(training.weights(model), (w, b), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)
    training.assert_same_everywhere(training.weights(model))


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizers.Adam(0.01),
        lambda: optimizers.Adam(0.01, clipnorm=0.1),
        lambda: optimizers.SGD(0.05, global_clipnorm=0.2),
        lambda: optimizers.SGD(0.05, clipvalue=0.01),
        lambda: optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
        lambda: optimizers.SGD(0.05, loss_scale_factor=128.0),
        lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    ],
    ids=["adam", "clipnorm", "global_clipnorm", "clipvalue", "weight_decay", "ema", "accumulation", "scale", "decay"],
)
def test_fit_is_as_by_one_process_on_the_joined_batch(make, rank, size):
    """Clipping and all else that Keras does to a gradient is done to the reduced one."""
    model = training.train(rank, size, hvd.DistributedOptimizer(make()))
    training.assert_close(model, training.joined(size, make()), rtol=2e-3, atol=2e-4)
    training.assert_same_everywhere([*training.weights(model), *(v.numpy() for v in model.optimizer.variables)])


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"steps_per_execution": 2}, {"jit_compile": False}], ids=str)
def test_how_keras_runs_a_step(how, rank, size):
    model = training.train(rank, size, hvd.DistributedOptimizer(sgd()), steps=6, **how)
    training.assert_close(model, training.joined(size, sgd(), steps=6))
    training.assert_same_everywhere(training.weights(model))


def test_a_custom_train_step_and_a_loop_of_ones_own(rank, size):
    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = training.make_model()

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            of = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, of), of, strict=True))
            return {"loss": loss}

    wanted = training.joined(size, sgd())
    data = training.share(training.make_data(size), rank, size)
    model = Custom()
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    training.fit(model, data)
    training.assert_close(model.inner, wanted)

    model, optimizer = training.make_model(), hvd.DistributedOptimizer(sgd())
    for x, y in zip(*(np.split(array, 5) for array in data), strict=True):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, model(x)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    training.assert_close(model, wanted)


def test_jit_compile_is_refused_and_the_error_says_what_to_do(several, rank, size):
    with pytest.raises(NotAvailableError, match=r"model\.compile\(jit_compile=False\)"):
        training.train(rank, size, hvd.DistributedOptimizer(sgd()), jit_compile=True)


def test_jit_compile_is_not_what_keras_takes_by_itself(rank, size):
    """With "auto" Keras compiles a model where it finds that it can."""
    training.train(rank, size, hvd.DistributedOptimizer(sgd()), steps=1, jit_compile="auto")


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_backward_passes_per_step(averages, eager, rank, size):
    """Six batches in three steps: as gradients of the sum, or of the mean, of two batches."""
    distributed = hvd.DistributedOptimizer(
        optimizers.SGD(0.02, momentum=0.9), backward_passes_per_step=2, average_aggregated_gradients=averages
    )
    model = training.train(rank, size, distributed, steps=6, run_eagerly=eager)
    wanted = training.make_model()
    wanted.compile(optimizer=optimizers.SGD(0.02, momentum=0.9), loss=lambda y, p: _mse(y, p) * (1 if averages else 2))
    rows = training.ROWS * 2 * size
    if size > 1:
        training.fit(wanted, training.make_data(size, 6), rows)
        training.assert_close(model, wanted)
        assert int(model.optimizer.iterations) == 3
    training.assert_same_everywhere(training.weights(model))


def _mse(y, p):
    return keras.ops.mean(keras.ops.square(y - p), axis=-1)


def test_horovods_arguments_by_place(rank, size):
    """`horovod.tensorflow.keras` has them in this order."""
    distributed = hvd.DistributedOptimizer(
        sgd(), "name", "", "", hvd.Compression.none, False, 2.0, hvd.Average, 1, True, 2, None, hvd.global_process_set,
        True,
    )  # fmt: skip
    training.assert_close(training.train(rank, size, distributed), training.joined(size, sgd()))


@pytest.mark.parametrize(
    ("op", "reduce"), [("Sum", np.sum), ("Min", np.min), ("Max", np.max), ("Product", np.prod), ("Average", np.mean)]
)
def test_operations(op, reduce, rank, size, rng):
    rows = rng.standard_normal((size, 7)).astype(np.float32)
    variable = keras.Variable(np.zeros(7, np.float32), name="v")
    hvd.DistributedOptimizer(optimizers.SGD(1.0), op=getattr(hvd, op)).apply([tf.constant(rows[rank])], [variable])
    np.testing.assert_allclose(-variable.numpy(), reduce(rows, 0), rtol=1e-5, atol=1e-6)


def test_groups_change_nothing_but_when_gradients_leave(rank, size):
    wanted = training.train(rank, size, hvd.DistributedOptimizer(sgd()))
    training.assert_same_bits(training.train(rank, size, hvd.DistributedOptimizer(sgd(), num_groups=2)), wanted)
    model = training.make_model()
    grouped = hvd.DistributedOptimizer(sgd(), groups=[model.trainable_variables[:2]])
    model.compile(optimizer=grouped, loss="mse")
    training.fit(model, training.share(training.make_data(size), rank, size))
    training.assert_same_bits(model, wanted)


# --- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_keeps_replicas_alike_and_learns(codec, rank, size):
    model = training.make_model()
    data = training.share(training.make_data(size, 20), rank, size)
    model.compile(optimizer=hvd.DistributedOptimizer(optimizers.SGD(0.02, momentum=0.5), compression=codec), loss="mse")
    losses = training.fit(model, data, epochs=3).history["loss"]
    assert losses[-1] < losses[0]
    training.assert_same_everywhere([*training.weights(model), *(v.numpy() for v in model.optimizer.variables)])
    if size > 1:
        used = {name.removeprefix("allreduce."): plan.codec for name, plan in hvd.plans().items()}
        assert used["out/bias"] == "none", "small ones go as they are"
        allowed = codec + (", none" if codec.startswith("auto(") else "")  # which `auto` may find the fastest
        assert used["hidden/kernel"].partition("(")[0] in allowed


def gradients(rank):
    return np.random.default_rng(100 + rank).standard_normal((STEPS, NUMEL)).astype(np.float32)


def by_torch(rank, codec, numel, **how):
    parameter = torch.nn.Parameter(torch.zeros(numel))
    inner = torch.optim.SGD([parameter], lr=1.0, **how)
    optimizer = casync.torch.DistributedOptimizer(inner, [("p", parameter)], compression=codec)
    for row in gradients(rank):
        optimizer.zero_grad()
        (parameter * torch.from_numpy(row[:numel])).sum().backward()
        optimizer.step()
    return parameter.detach().numpy().copy()


def by_keras(rank, codec, numel, **how):
    variable = keras.Variable(np.zeros(numel, np.float32), name="p")
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0, **how), compression=codec)
    for row in gradients(rank):
        optimizer.apply([tf.constant(row[:numel])], [variable])
    return variable.numpy()


def anew():
    hvd.shutdown()
    hvd.init(timeout_s=20.0)


@pytest.mark.parametrize("codec", CODECS[:-1])
def test_weights_are_torchs_bit_for_bit(codec, rank, size):
    """A codec that takes no momentum over is compared without one: the order of Keras's roundings is its own."""
    how = {"momentum": 0.9} if codec.startswith("dgc") and size > 1 else {}
    theirs = by_torch(rank, codec, NUMEL, **how)
    anew()
    ours = by_keras(rank, codec, NUMEL, **how)
    np.testing.assert_array_equal(ours, theirs)
    training.assert_same_everywhere([ours])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("numel", [NUMEL, 1000])
def test_dgc_takes_over_the_momentum_of_what_it_compresses(nesterov, numel, several, rank, size):
    """And leaves Keras's to what is too small."""
    how = {"momentum": 0.9, "nesterov": nesterov}
    theirs = by_torch(rank, "dgc(ratio=0.05)", numel, **how)
    anew()
    ours = by_keras(rank, "dgc(ratio=0.05)", numel, **how)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    anew()
    plain = by_keras(rank, "none", numel, **how)
    assert np.allclose(ours, plain, rtol=1e-5, atol=1e-5) == (numel == 1000)


def test_a_momentum_that_cannot_be_taken_over(several):
    with pytest.raises(InvalidArgumentError, match=r"Adam is no keras\.optimizers\.SGD: use SGD, or say momentum=0"):
        hvd.DistributedOptimizer(optimizers.Adam(), compression="dgc")
    hvd.DistributedOptimizer(optimizers.Adam(), compression="dgc", momentum=0)
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(momentum=0.9, nesterov=True), compression="dgc")
    assert (optimizer.momentum, optimizer.nesterov) == (0.9, True), "what is saved is what the user made"


def test_rules_see_the_path_of_a_variable(rank, size, caplog):
    rules = {"*/bias": "always(fp16)", "* where numel >= 4096": "onebit", "nobody/*": "fp16", "*": "none"}
    with caplog.at_level(logging.WARNING, "casync"):
        model = training.train(rank, size, hvd.DistributedOptimizer(sgd(), compression=rules))
    training.assert_same_everywhere(training.weights(model))
    if size < 2:
        return
    used = {name.removeprefix("allreduce."): plan.codec for name, plan in hvd.plans().items()}
    assert used == {"hidden/kernel": "onebit", "hidden/bias": "fp16", "out/kernel": "none", "out/bias": "fp16"}
    assert ("'nobody/*'" in caplog.text) == (rank == 0)


def test_config_names_the_codec_where_the_script_does_not(several, rank, size):
    hvd.shutdown()
    hvd.init(timeout_s=20.0, compression="onebit")
    training.train(rank, size, hvd.DistributedOptimizer(sgd()))
    assert hvd.plans()["allreduce.hidden/kernel"].codec == "onebit"
    anew()
    training.train(rank, size, hvd.DistributedOptimizer(sgd(), compression="none"))
    assert hvd.plans()["allreduce.hidden/kernel"].codec == "none"


# --- gradients of every kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_slices_of_an_embedding(as_dense, passes, rank, size):
    rng = np.random.default_rng(3)
    x = rng.integers(0, 50, (6 * size * 4, 5))
    y = rng.standard_normal((6 * size * 4, 2)).astype(np.float32)

    def make():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((5,)), layers.Embedding(50, 4), layers.Flatten(), layers.Dense(2)])

    model, wanted = make(), make()
    own = [array.reshape(-1, size, 4, array.shape[-1])[:, rank].reshape(-1, array.shape[-1]) for array in (x, y)]
    optimizer = hvd.DistributedOptimizer(
        optimizers.SGD(0.5), sparse_as_dense=as_dense, backward_passes_per_step=passes,
        average_aggregated_gradients=True,
    )  # fmt: skip
    model.compile(optimizer=optimizer, loss="mse")
    training.fit(model, own, 4)
    wanted.compile(optimizer=optimizers.SGD(0.5), loss="mse")
    training.fit(wanted, (x, y), 4 * size * (passes if size > 1 else 1))
    training.assert_close(model, wanted)
    training.assert_same_everywhere(training.weights(model))


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_variables_without_a_gradient(passes, rank, size):
    used, unused = (keras.Variable(np.zeros(3, np.float32), name=name) for name in ("used", "unused"))
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=passes)
    for _ in range(2):
        optimizer.apply([tf.fill([3], float(rank)), None], [used, unused])
    np.testing.assert_allclose(used.numpy(), -(size - 1), rtol=1e-6)
    np.testing.assert_array_equal(unused.numpy(), 0)


def test_a_gradient_that_one_rank_lacks_ends_in_an_error_that_names_it(several, rank):
    hvd.shutdown()
    hvd.init(timeout_s=2.0, stall_warning_s=1.0)
    variables = [keras.Variable(np.zeros(3, np.float32), name=name) for name in ("a", "b")]
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    given = [tf.ones(3), None if rank == 0 else tf.ones(3)]
    if rank == 0:
        optimizer.apply(given, variables)
        time.sleep(1)  # or it would wait for the other one, in vain, as long as that does
    else:
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"allreduce\.b"):
            optimizer.apply(given, variables)


def test_a_model_that_is_built_by_its_first_batch(rank, size):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(3)])
    model.compile(optimizer=hvd.DistributedOptimizer(optimizers.Adam(0.01), compression="onebit"), loss="mse")
    training.fit(model, training.share(training.make_data(size), rank, size))
    training.assert_same_everywhere(training.weights(model))


def test_frozen_layers_are_not_sent(several, rank, size):
    model = training.make_model()
    model.layers[0].trainable = False
    model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    training.fit(model, training.share(training.make_data(size), rank, size))
    assert set(hvd.plans()) == {"allreduce.out/kernel", "allreduce.out/bias"}


def test_variables_of_one_path_are_told_apart(rank, size):
    """Layers of two models inside a third may have the same names."""
    variables = [keras.Variable(np.zeros(n, np.float32), name="same") for n in (3, 3)]
    for passes in (1, 2):
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=passes)
        for variable in variables:
            variable.assign(np.zeros(3, np.float32))
        for _ in range(passes):
            optimizer.apply([tf.fill([3], rank + 1.0), tf.fill([3], 10.0)], variables)
        mean = (size + 1) / 2
        np.testing.assert_allclose(variables[0].numpy(), -mean * passes, rtol=1e-6)
        np.testing.assert_allclose(variables[1].numpy(), -10 * passes, rtol=1e-6)


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        (["m/a/kernel", "m/a/bias", "m/b/kernel"], ["a/kernel", "a/bias", "b/kernel"]),
        (["a/kernel", "a/bias", "b/kernel"], ["a/kernel", "a/bias", "b/kernel"]),
        (["m/a/kernel", "m/a/bias"], ["a/kernel", "a/bias"]),
        (["a/kernel", "a/bias"], ["a/kernel", "a/bias"]),
        (["m/block/query/kernel", "m/block/bias"], ["block/query/kernel", "block/bias"]),
        (["m/a/kernel", "m/a/kernel", "m/b/kernel"], ["a/kernel", "a/kernel.1", "b/kernel"]),
        (["v", "w"], ["v", "w"]),
        ([], []),
    ],
)
def test_names_are_paths_without_the_model(paths, wanted):
    """A Sequential model that is loaded from a file has no name in its paths; a new one has."""
    variables = [SimpleNamespace(path=path) for path in paths]
    assert names_of(variables, None) == wanted
    assert names_of(variables, "first") == [f"first/{name}" for name in wanted]


def test_two_models_whose_layers_have_the_same_names(several, rank, size):
    """What a codec keeps belongs to a name; `name=` tells them apart."""
    data = training.share(training.make_data(size), rank, size)
    for names in (("first", "second"), (None, None)):
        models = [training.make_model(seed) for seed in (0, 1)]
        for model, name in zip(models, names, strict=True):
            model.compile(optimizer=hvd.DistributedOptimizer(sgd(), name, compression="onebit"), loss="mse")
            training.fit(model, data)
        if names[0] is not None:
            training.fit(models[0], data)
            training.assert_same_everywhere(training.weights(models[0]))
        else:
            with pytest.raises(InvalidArgumentError, match="belongs to a DistributedOptimizer that was made later"):
                models[0].optimizer.apply([tf.zeros(v.shape) for v in models[0].variables], models[0].variables)


def test_a_model_is_not_trained_on_after_another_one_took_its_names(several, rank, size):
    """Also where its graph was made before."""
    data = training.share(training.make_data(size), rank, size)
    models = [training.make_model(seed) for seed in (0, 1)]
    for model in models:
        model.compile(optimizer=hvd.DistributedOptimizer(sgd(), compression="onebit"), loss="mse")
        training.fit(model, data)
    before = training.weights(models[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="belongs to a DistributedOptimizer that was made later"):
        training.fit(models[0], data)
    for mine, other in zip(training.weights(models[0]), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    training.fit(models[1], data)
    training.assert_same_everywhere(training.weights(models[1]))


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_two_models_of_equal_names_in_one_step(codec, rank, size):
    """As in a GAN: their gradients have names of their own."""

    class Both(keras.Model):
        def __init__(self):
            super().__init__()
            self.models = [training.make_model(seed) for seed in (0, 1)]

        def call(self, x):
            return self.models[0](x)

        def compile(self, *optimizers):
            super().compile()
            self.optimizers = optimizers

        def train_step(self, data):
            x, y = data
            losses = []
            for model, optimizer, factor in zip(self.models, self.optimizers, (1.0, 10.0), strict=True):
                with tf.GradientTape() as tape:
                    losses.append(keras.ops.mean((model(x) - factor * y) ** 2))
                gradients = tape.gradient(losses[-1], model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return {"loss": losses[0]}

    data = training.make_data(size)
    ours, wanted = Both(), Both()
    ours.compile(*(hvd.DistributedOptimizer(optimizers.SGD(0.01), compression=codec) for _ in range(2)))
    training.fit(ours, training.share(data, rank, size), epochs=2)
    wanted.compile(*(optimizers.SGD(0.01) for _ in range(2)))
    training.fit(wanted, data, training.ROWS * size, epochs=2)
    for mine, other in zip(ours.models, wanted.models, strict=True):
        training.assert_same_everywhere(training.weights(mine))
        if codec == "none":
            training.assert_close(mine, other)


def test_two_models_in_one_process(rank, size):
    data = training.share(training.make_data(size), rank, size)
    models = [training.make_model(seed, f"model{seed}") for seed in (0, 1)]
    for model in models:
        model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    for _ in range(2):
        for model in models:
            training.fit(model, data)
    for seed, model in enumerate(models):
        alone = training.make_model(seed)
        alone.compile(optimizer=sgd(), loss="mse")
        training.fit(alone, training.make_data(size), training.ROWS * size, epochs=2)
        training.assert_close(model, alone)


@pytest.mark.parametrize("scales", [False, True])
def test_local_layers_keep_their_own_gradients(scales, rank, size):
    rate, steps = 0.05, 1
    data = training.share(training.make_data(size, steps), rank, size)
    model = training.make_model()
    before = training.weights(model)
    model.compile(
        optimizer=hvd.PartialDistributedOptimizer(
            optimizers.SGD(rate), local_layers=model.layers[1], scale_local_gradients=scales
        ),
        loss="mse",
    )
    training.fit(model, data)
    alone = training.make_model()
    alone.compile(optimizer=optimizers.SGD(rate), loss="mse")
    training.fit(alone, data)
    wanted = training.joined(size, optimizers.SGD(rate), steps=steps)
    after, own, all_together = (training.weights(one) for one in (model, alone, wanted))
    for i in (0, 1):
        np.testing.assert_allclose(after[i], all_together[i], rtol=1e-4, atol=1e-6)
    for i in (2, 3):
        moved = (own[i] - before[i]) / (size if scales else 1)
        np.testing.assert_allclose(after[i] - before[i], moved, rtol=1e-3, atol=1e-6)


def test_what_is_no_layer_is_refused(rank):
    with pytest.raises(InvalidArgumentError, match="local_layers holds a int"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=[3])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_an_optimizer_reduces_too(copied, rank, size):
    first = hvd.DistributedOptimizer(sgd(), compression="fp16")
    model = training.train(rank, size, copied(first))
    training.assert_close(model, training.joined(size, sgd()), rtol=2e-2, atol=2e-3)
    training.assert_same_everywhere(training.weights(model))
    again = copied(model.optimizer)
    assert again._casync[0].settings == first._casync[0].settings and again.get_config() == first.get_config()


def test_a_process_set_trains_by_itself(several, rank, size):
    hvd.shutdown()
    first = hvd.ProcessSet([0])
    rest = hvd.ProcessSet(range(1, size))
    hvd.init(timeout_s=20.0, process_sets=[first, rest])
    own = first if rank == 0 else rest
    variable = keras.Variable(np.zeros(3, np.float32), name="v")
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), process_set=own)
    optimizer.apply([tf.fill([3], float(rank))], [variable])
    np.testing.assert_allclose(variable.numpy(), 0 if rank == 0 else -np.mean(range(1, size)), rtol=1e-6)


# --- who is refused ---------------------------------------------------------------------------------------------------


def test_optimizers_that_are_none_of_keras_3(rank):
    class Legacy:
        pass

    with pytest.raises(InvalidArgumentError, match=r"a Legacy is no keras\.optimizers\.Optimizer: those of tf\.keras"):
        hvd.DistributedOptimizer(Legacy())
    with pytest.raises(InvalidArgumentError, match="backward_passes_per_step must be > 0"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=0)
    with pytest.raises(InvalidArgumentError, match="gradient_predivide_factor not supported"):
        hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, op=hvd.Sum)


def test_before_init(rank):
    hvd.shutdown()
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.DistributedOptimizer(sgd())
    hvd.init(timeout_s=20.0)


def test_a_backend_that_we_do_not_know(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(NotAvailableError, match="Keras runs on jax, .* set KERAS_BACKEND=tensorflow or torch"):
        hvd.DistributedOptimizer(sgd())


def test_names(rank):
    import casync.tensorflow
    import casync.tensorflow.keras as other
    import casync.tensorflow.keras.callbacks

    for name in set(hvd.__all__) - {"callbacks"}:
        assert getattr(other, name) is getattr(hvd, name)
    assert casync.tensorflow.keras.callbacks.MetricAverageCallback is hvd.callbacks.MetricAverageCallback
    for module in (hvd, other):
        with pytest.raises(AttributeError, match="elastic is part of Horovod's interface and not there yet"):
            module.elastic  # noqa: B018
    wrapped = casync.tensorflow.DistributedOptimizer(sgd())
    assert type(wrapped).__name__ == "SGD" and hasattr(wrapped, "register_local_var")


def test_operations_on_values(rank, size):
    assert float(hvd.allreduce(float(rank), average=False)) == sum(range(size))
    assert hvd.allreduce(tf.fill([2], float(rank)), op=hvd.Max).tolist() == [size - 1] * 2
    assert hvd.allgather(np.full((rank + 1, 2), rank)).shape == (size * (size + 1) // 2, 2)
    assert hvd.broadcast(keras.Variable(np.full(3, rank)), size - 1).tolist() == [size - 1] * 3
    assert hvd.reducescatter(np.ones((size, 2)), op=hvd.Sum).tolist() == [[size, size]]
    variable = keras.Variable(np.full(3, rank))
    hvd.broadcast_variables([variable], 0)
    assert variable.numpy().tolist() == [0] * 3
    with pytest.raises(NotAvailableError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


@pytest.mark.usefixtures("several")
def test_after_a_variable_that_ranks_disagree_about_the_names_can_be_used_again(rank):
    for _ in range(2):
        shapes = [3, 4 + rank, 3, 3]
        with pytest.raises(MismatchError, match="v1"):
            hvd.broadcast_variables([keras.Variable(np.zeros(n), name=f"v{i}") for i, n in enumerate(shapes)], 0)
        assert not default.session().has_outstanding
        good = [keras.Variable(np.full(3, rank), name=f"v{i}") for i in range(4)]
        hvd.broadcast_variables(good, 0)
        assert all(one.numpy().tolist() == [0] * 3 for one in good)


@pytest.mark.usefixtures("several")
def test_the_callback_that_failed_broadcasts_when_it_is_used_again(rank):
    def model(width):
        return keras.Sequential([keras.Input((2,)), layers.Dense(width, kernel_initializer="ones", name="dense")])

    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model(3 + rank))
    callback.model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(MismatchError, match="dense"):
        callback.on_train_begin()
    callback.set_model(model(3))
    callback.model.compile(optimizer="sgd", loss="mse")
    callback.model.layers[0].kernel.assign(np.full((2, 3), rank))
    callback.on_train_begin()
    assert not callback.model.layers[0].kernel.numpy().any()


def test_a_world_of_one_is_keras_alone(rank, size):
    if size > 1:
        pytest.skip("there are several")
    training.assert_same_bits(training.train(0, 1, hvd.DistributedOptimizer(sgd())), training.train(0, 1, sgd()))
    assert default.session().size == 1

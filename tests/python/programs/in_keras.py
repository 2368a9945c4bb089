"""Programs of Keras: `compile` and `fit`, with what optimizers, callbacks and layers can do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

from tests.python.programs.cells import refused, right
from tests.python.programs.doors_tensorflow import INPUTS, OUTPUTS, ROWS, whole
from tests.python.programs.ends import broken, die


def net(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((INPUTS,)), layers.Dense(24, "tanh", name="hidden"), layers.Dense(OUTPUTS, name="out")]
    )


def sgd(**more: Any) -> Any:
    return optimizers.SGD(0.05, momentum=0.9, **more)


def weights(*models: Any) -> dict[str, Any]:
    found = {}
    for number, model in enumerate(models):
        for at, weight in enumerate(model.weights):
            found[f"{number}.{at}.{weight.name}"] = np.array(keras.ops.convert_to_numpy(weight))
    return found


@right("a learning-rate schedule made before the wrap", "keras")
def schedule_before(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9))
    door.fit(model)
    return weights(model)


@right("a learning-rate schedule made after the wrap", "keras")
def schedule_after(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd())
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
    history = door.fit(model, steps=3, epochs=3, callbacks=[rates])
    return {"rates": history.history["learning_rate"], **weights(model)}


@right("optimizers of many kinds", "keras")
def many_kinds(door: Any) -> dict[str, Any]:
    kinds = {
        "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
        "rmsprop": lambda: optimizers.RMSprop(0.005, centered=True),
        "adagrad": lambda: optimizers.Adagrad(0.05),
    }
    found = {}
    for name, make in kinds.items():
        model = net(door.seed)
        door.compile(model, make())
        door.fit(model, steps=3)
        found |= {f"{name}.{key}": value for key, value in weights(model).items()}
    return found


@right("gradient accumulation", "keras")
def accumulation(door: Any) -> dict[str, Any]:
    """Keras's own way."""
    model = net(door.seed)
    door.compile(model, sgd(gradient_accumulation_steps=2))
    door.fit(model, steps=8)
    return weights(model)


@right("clipping of gradients, by norm and by value", "keras")
def clipping(door: Any) -> dict[str, Any]:
    found = {}
    for name, clip in (("norm", {"global_clipnorm": 0.3}), ("each", {"clipnorm": 0.2}), ("value", {"clipvalue": 0.05})):
        model = net(door.seed)
        door.compile(model, sgd(**clip))
        door.fit(model, steps=4)
        found |= {f"{name}.{key}": value for key, value in weights(model).items()}
    return found


@right("a GradScaler, with steps that are skipped", "keras")
def scaler_that_skips(door: Any) -> dict[str, Any]:
    """LossScaleOptimizer, around ours; one rank's loss overflows in a step."""
    model = net(door.seed)
    scaled = optimizers.LossScaleOptimizer(door.optimizer(sgd()), initial_scale=256.0, dynamic_growth_steps=3)
    model.compile(optimizer=scaled, loss="mse", jit_compile=False)
    x, y = door.data(6)
    y = y.copy()
    if door.has(1):
        y.reshape(6, -1, ROWS, OUTPUTS)[2, -1] = np.inf
    calls = [*door.callbacks()]
    model.fit(x, y, batch_size=door.rows, shuffle=False, verbose=0, callbacks=calls)
    return {"scale": float(scaled.dynamic_scale), **weights(model)}


@right("hooks of an optimizer's step", "keras")
def step_hooks(door: Any) -> dict[str, Any]:
    """A callback around each batch."""
    model = net(door.seed)
    seen: list[Any] = []
    door.compile(model, sgd())
    after = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(model.layers[0].bias[0]))
    door.fit(model, callbacks=[after])
    return {"seen": [float(one) for one in seen], **weights(model)}


@right("parameters that are frozen later", "keras")
def frozen_later(door: Any) -> dict[str, Any]:
    """Keras wants a model compiled again then."""
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, steps=3)
    model.layers[0].trainable = False
    door.compile(model, sgd())
    door.fit(model, steps=3)
    return weights(model)


@right("parameters that are unfrozen later", "keras")
def unfrozen_later(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    model.layers[0].trainable = False
    door.compile(model, sgd())
    door.fit(model, steps=3)
    model.layers[0].trainable = True
    door.compile(model, sgd())
    door.fit(model, steps=3)
    return weights(model)


@right("parameters that are replaced by others", "keras")
def replaced(door: Any) -> dict[str, Any]:
    """Another head on the same body."""
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, steps=3)
    head = layers.Dense(OUTPUTS, name="out", kernel_initializer=keras.initializers.Constant(0.01))
    other = keras.Sequential([keras.Input((INPUTS,)), model.layers[0], head])
    door.compile(other, sgd())
    door.fit(other, steps=3)
    return weights(other)


@right("a checkpoint of rank 0, from which all ranks go on", "keras")
def resumed(door: Any) -> dict[str, Any]:
    """`hvd.load_model` on all ranks of what rank 0 has saved; the reference is not interrupted."""
    model = net(door.seed)
    door.compile(model, sgd())
    x, y = door.data(6)
    half = 3 * door.rows
    more = {"batch_size": door.rows, "shuffle": False, "verbose": 0}
    model.fit(x[:half], y[:half], callbacks=door.callbacks(), **more)
    if door.name != "alone":
        path = door.job.folder / f"model-{door.codec}.keras"
        if door.rank == 0:
            model.save(path)
        door.hvd.barrier()
        model = door.hvd.load_model(path, compression=door.codec)
    model.fit(x[half:], y[half:], **more)
    return weights(model)


@right("copies of a model (deepcopy, torch.save)", "keras")
def copied(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, steps=3)
    best = keras.models.clone_model(model)
    best.set_weights(model.get_weights())
    door.fit(model, steps=3)
    return weights(model, best)


@right("moving averages of the weights (AveragedModel)", "keras")
def averaged(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd(use_ema=True, ema_momentum=0.7))
    door.fit(model)
    trained = weights(model)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return trained | {f"average.{name}": value for name, value in weights(model).items()}


@refused(
    "a compiled model (torch.compile, XLA, hybridize)", "keras",
    error="InvalidArgumentError|NotAvailableError", says="jit_compile", batches=6,
    why="XLA compiles no operation that talks to other ranks. Everything else of a graph works",
)  # fmt: skip
def compiled(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd(), jit_compile=True)
    door.fit(model)
    return weights(model)


@right("evaluation on rank 0 only", "keras")
def evaluated_on_one(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, steps=3)
    if door.has(0):
        model.evaluate(np.ones((3, INPUTS), np.float32), np.ones((3, OUTPUTS), np.float32), verbose=0)
    door.fit(model, steps=3)
    return weights(model)


@right("sums and means of metrics between steps", "keras")
def metrics(door: Any) -> dict[str, Any]:
    """MetricAverageCallback."""
    model = net(door.seed)
    door.compile(model, sgd(), metrics=["mae"])
    more = [] if door.name == "alone" else [door.hvd.callbacks.MetricAverageCallback()]
    history = door.fit(model, steps=1, epochs=4, callbacks=more)
    return {"loss": history.history["loss"], "mae": history.history["mae"]}


@right("gradients of gradients (a penalty on them)", "keras")
def gradient_penalty(door: Any) -> dict[str, Any]:
    """A `train_step` of one's own."""

    class Penalised(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(door.seed)

        def call(self, x: Any) -> Any:
            return self.inner(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    said = self(x, training=True)
                    total = tf.reduce_sum(said)
                slope = inner.gradient(total, x)
                penalty = tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1))
                loss = tf.reduce_mean(tf.square(said - y)) + 0.1 * penalty
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return {"loss": loss}

    model = Penalised()
    model.build((None, INPUTS))
    door.compile(model, optimizers.SGD(0.02))
    door.fit(model)
    return weights(model)


@right("the session ends and begins again", "keras")
def begun_again(door: Any) -> dict[str, Any]:
    found = {}
    for life in range(2):
        model = net(door.seed)
        door.compile(model, sgd())
        door.fit(model, steps=3, callbacks=[])
        found |= {f"{life}.{name}": value for name, value in weights(model).items()}
        door.again()
    return found


class Fails(keras.callbacks.Callback):
    def __init__(self, door: Any, fail: Any) -> None:
        super().__init__()
        self.door, self.fail = door, fail

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 3 and self.door.rank == 1:
            self.fail()


@right("an exception on one rank", "keras", apart=True, ends=(1, 1), says="rank 1: ValueError: the labels of rank 1")
def exception(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, callbacks=[Fails(door, broken)])
    return {}


@right("a rank that is killed", "keras", apart=True, ends=(1, -9), says="rank 1")
def killed(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, callbacks=[Fails(door, die)])
    return {}


class Own(keras.Model):
    """A `train_step` of one's own around a model."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.built = True

    def call(self, x: Any) -> Any:
        return self.inner(x)


class Halves(Own):
    """Each layer has an optimizer."""

    def compile(self, first: Any, last: Any) -> None:
        super().compile(loss="mse", jit_compile=False)
        self.first, self.last = first, last

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        of = [layer.trainable_variables for layer in self.inner.layers]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        gradients = tape.gradient(loss, of)
        for optimizer, some, variables in zip((self.first, self.last), gradients, of, strict=True):
            optimizer.apply_gradients(zip(some, variables, strict=True))
        return {"loss": loss}


@right("two optimizers that step after one backward", "keras")
def two_optimizers(door: Any) -> dict[str, Any]:
    model = Halves(net(door.seed))
    model.compile(door.optimizer(sgd()), door.optimizer(optimizers.AdamW(0.02)))
    door.fit(model)
    return weights(model.inner)


class Gan(keras.Model):
    """As Keras's own guide has it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = net(seed)
        self.critic = keras.Sequential(
            [keras.Input((OUTPUTS,)), layers.Dense(12, "tanh", name="judge"), layers.Dense(1)]
        )
        self.built = True

    def compile(self, of_generator: Any, of_critic: Any) -> None:
        super().compile(jit_compile=False)
        self.of_generator, self.of_critic = of_generator, of_critic
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> dict[str, Any]:
        noise, real = data
        fake = self.generator(noise)
        with tf.GradientTape() as tape:
            said, of_fake = self.critic(real), self.critic(fake)
            loss = self.loss_of(tf.ones_like(said), said) + self.loss_of(tf.zeros_like(of_fake), of_fake)
        variables = self.critic.trainable_variables
        self.of_critic.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        with tf.GradientTape() as tape:
            said = self.critic(self.generator(noise))
            loss = self.loss_of(tf.ones_like(said), said)
        variables = self.generator.trainable_variables
        self.of_generator.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@right("two models whose optimizers take turns (a GAN)", "keras")
def gan(door: Any) -> dict[str, Any]:
    model = Gan(door.seed)
    model.compile(door.optimizer(optimizers.Adam(0.01)), door.optimizer(optimizers.Adam(0.01)))
    door.fit(model)
    return weights(model.generator, model.critic)


@right("two models and one optimizer", "keras")
def two_models(door: Any) -> dict[str, Any]:
    whole = net(door.seed)
    parts = [keras.Sequential([keras.Input((INPUTS,)), whole.layers[0]]), keras.Sequential(whole.layers[1:])]
    model = keras.Sequential([keras.Input((INPUTS,)), *parts])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("autocast to bfloat16", "keras", far=0.03)
def autocast(door: Any) -> dict[str, Any]:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = net(door.seed)
    door.compile(model, optimizers.SGD(0.02))
    door.fit(model, steps=3)
    return weights(model)


@right("a state that the optimizer loads in the middle of training", "keras")
def state_loaded(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model, steps=3)
    state = [*model.variables, *model.optimizer.variables]
    best = [np.array(one) for one in state]
    door.fit(model, steps=2)
    for variable, value in zip(state, best, strict=True):
        variable.assign(value)
    door.fit(model, steps=3)
    return weights(model)


@right("groups of ranks, each with a model of its own", "keras", codec="none")
def groups(door: Any) -> dict[str, Any]:
    """Each rank is a group here."""
    model = net(door.job.rank)
    more = {} if door.name == "alone" else {"process_set": [door.hvd.add_process_set([r]) for r in range(2)][door.rank]}
    door.compile(model, sgd())
    if more:
        model.compile(optimizer=door.optimizer(sgd(), **more), loss="mse", jit_compile=False)
    x, y = (np.concatenate([np.split(b[at], 2)[door.job.rank] for b in whole(4, 2)]) for at in (0, 1))
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    return {f"own.{name}": value for name, value in weights(model).items()}

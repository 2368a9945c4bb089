"""Programs of TensorFlow whose layers, weights or dtypes are not all of a kind."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, optimizers

from tests.python.programs.cells import refused, right
from tests.python.programs.doors_tensorflow import INPUTS, OUTPUTS, whole
from tests.python.programs.in_keras import net, weights
from tests.python.programs.in_tensorflow import mse, sgd, train, training


@right("parameters that are frozen later", "tensorflow")
def frozen_later(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    optimizer.build(model.trainable_variables)
    batches = door.batches(6)
    for frozen in (False, True):
        some = model.layers[1] if frozen else model
        step = training(door, model, optimizer, of=lambda some=some: some.trainable_variables)
        for _ in range(3):
            step(*next(batches))
    return weights(model)


@right("parameters that are unfrozen later", "tensorflow")
def unfrozen_later(door: Any) -> dict[str, Any]:
    model, optimizer = net(door.seed), sgd()
    door.begin(model.variables)
    optimizer.build(model.trainable_variables)
    batches = door.batches(6)
    for some in (model.layers[1], model):
        step = training(door, model, optimizer, of=lambda some=some: some.trainable_variables)
        for _ in range(3):
            step(*next(batches))
    return weights(model)


@right("parameters that are replaced by others", "tensorflow")
def replaced(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    train(door, model, sgd(), steps=3)
    head = layers.Dense(OUTPUTS, name="out", kernel_initializer=keras.initializers.Constant(0.01))
    other = keras.Sequential([keras.Input((INPUTS,)), model.layers[0], head])
    return train(door, other, sgd(), steps=3)


class Experts(keras.Model):
    def __init__(self, seed: int) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.first, self.second, self.last = (layers.Dense(n) for n in (8, 8, OUTPUTS))

    def build(self, shape: Any) -> None:
        self.first.build((None, INPUTS))
        self.second.build((None, INPUTS))
        self.last.build((None, 8))
        self.built = True

    def call(self, x: Any, use: Any) -> Any:
        hidden = tf.cond(use, lambda: self.first(x), lambda: self.second(x))
        return self.last(tf.tanh(hidden))


@right("parameters that some ranks do not use", "tensorflow")
def unused_by_some(door: Any) -> dict[str, Any]:
    """A branch of the graph that depends on the rank."""
    model, optimizer = Experts(door.seed), optimizers.SGD(0.05)
    model.build((None, INPUTS))
    door.begin(model.variables)

    @tf.function(autograph=False)
    def step(shares: Any, uses: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([mse(model(x, u), y) for (x, y), u in zip(shares, uses, strict=True)]) / len(shares)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for number, batch in enumerate(whole(4, door.size)):
        step(door.shares(batch), [tf.constant((number + rank) % 2 == 0) for rank in door.ranks()])
    return weights(model)


@right("parameters that no rank uses in a step", "tensorflow")
def unused_by_all(door: Any) -> dict[str, Any]:
    """Their gradients are None."""
    model, optimizer = Experts(door.seed), optimizers.SGD(0.05)
    model.build((None, INPUTS))
    door.begin(model.variables)
    optimizer.build(model.trainable_variables)
    for number, (x, y) in enumerate(door.batches(5)):
        layer = (model.first, model.second)[number // 2 % 2]
        with tf.GradientTape() as tape:
            loss = mse(model.last(tf.tanh(layer(x))), y)
        gradients = door.tape(tape).gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients([(gradient, variable) for gradient, variable in pairs if gradient is not None])
    return weights(model)


class Table(keras.Model):
    """An embedding, whose gradients are IndexedSlices."""

    def __init__(self, seed: int, tied: bool = False) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.table = layers.Embedding(20, OUTPUTS, name="table")
        self.table.build((None,))
        self.mix = layers.Dense(OUTPUTS, name="mix")
        self.mix.build((None, OUTPUTS))
        self.tied = tied
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        words = tf.cast(tf.abs(x[:, 0]) * 7, tf.int32) % 20
        said = self.mix(tf.tanh(self.table(words)))
        return said @ tf.transpose(self.table.embeddings)[:, :OUTPUTS] if self.tied else said


@right("weights that are tied", "tensorflow")
def tied(door: Any) -> dict[str, Any]:
    return train(door, Table(door.seed, tied=True), optimizers.SGD(0.1))


@right("an embedding whose gradients are sparse", "tensorflow")
def sparse(door: Any) -> dict[str, Any]:
    if door.codec != "none":
        door.codec = {"*table*": "none", "*": door.codec}
    return train(door, Table(door.seed), optimizers.SGD(0.1))


class Odd(keras.Model):
    def __init__(self, seed: int) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.matrix = self.add_weight(shape=(INPUTS, OUTPUTS), name="matrix")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.empty = self.add_weight(shape=(0, OUTPUTS), name="empty")
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return tf.concat([x @ self.matrix, tf.convert_to_tensor(self.empty)], 0) * self.scale


@right("parameters without elements or dimensions, or not contiguous", "tensorflow")
def odd(door: Any) -> dict[str, Any]:
    return train(door, Odd(door.seed), optimizers.SGD(0.02))


@right("training in float64", "tensorflow")
def float64(door: Any) -> dict[str, Any]:
    keras.mixed_precision.set_global_policy("float64")
    return train(door, net(door.seed), sgd())


@right("adapters beside frozen weights (LoRA)", "tensorflow")
def adapters(door: Any) -> dict[str, Any]:
    model = net(door.seed)
    model.layers[0].enable_lora(2)
    return train(door, model, sgd())


@right("a recurrent net and sequences of many lengths", "tensorflow")
def recurrent(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    shape = [keras.Input((INPUTS,)), layers.Reshape((4, 4)), layers.GRU(6), layers.Dense(OUTPUTS)]
    return train(door, keras.Sequential(shape), sgd())


@right("convolutions in channels_last", "tensorflow")
def convolutions(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    shape = [keras.Input((INPUTS,)), layers.Reshape((2, 2, 4)), layers.Conv2D(6, 2), layers.Flatten(), layers.Dense(4)]
    return train(door, keras.Sequential(shape), sgd())


@right("synchronised batch normalisation", "tensorflow")
def sync_batch_norm(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    norm = layers.BatchNormalization() if door.name == "alone" else door.hvd.SyncBatchNormalization()
    return train(door, keras.Sequential([keras.Input((INPUTS,)), layers.Dense(8), norm, layers.Dense(4)]), sgd())


@refused(
    "complex parameters", "tensorflow",
    error="NotAvailableError|InvalidArgumentError|TypeError", says="complex", batches=1,
    why="Horovod's TensorFlow interface has no complex dtype, nor has this one: train the real and the imaginary part",
)  # fmt: skip
def complex_parameters(door: Any) -> dict[str, Any]:
    waves = tf.Variable(tf.complex(tf.ones((INPUTS, OUTPUTS)), tf.ones((INPUTS, OUTPUTS))))
    for x, y in door.batches(2):
        with tf.GradientTape() as tape:
            loss = mse(tf.abs(tf.cast(x, tf.complex64) @ waves), y)
        gradient = door.tape(tape).gradient(loss, [waves])[0]
        waves.assign_sub(0.05 * gradient)
    return {"waves": tf.math.real(waves).numpy()}


@right("parameters of several dtypes", "tensorflow")
def several_dtypes(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    wide = layers.Dense(8, "tanh", dtype="float64")
    return train(door, keras.Sequential([keras.Input((INPUTS,)), wide, layers.Dense(OUTPUTS)]), sgd())


class WeightNorm(keras.Model):
    """The direction and the length of a weight are parameters of their own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.direction = self.add_weight(shape=(INPUTS, OUTPUTS), name="direction")
        self.length = self.add_weight(shape=(OUTPUTS,), initializer="ones", name="length")
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return x @ (self.length * tf.math.l2_normalize(tf.convert_to_tensor(self.direction), axis=0))


@right("weights that are computed (weight_norm, parametrizations)", "tensorflow")
def parametrized(door: Any) -> dict[str, Any]:
    return train(door, WeightNorm(door.seed), sgd())


@right("autocast to bfloat16", "tensorflow", far=0.03)
def autocast(door: Any) -> dict[str, Any]:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    return train(door, net(door.seed), optimizers.SGD(0.02), steps=3)


@right("batch normalisation", "tensorflow", codec="none")
def batch_norm(door: Any) -> dict[str, Any]:
    """In its form for inference here, whose numbers do not depend on the other rows."""
    keras.utils.set_random_seed(door.seed)
    frozen = layers.BatchNormalization(trainable=False)
    return train(door, keras.Sequential([keras.Input((INPUTS,)), layers.Dense(8), frozen, layers.Dense(4)]), sgd())

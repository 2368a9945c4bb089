"""Programs of Keras whose layers, weights or dtypes are not all of a kind."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

from tests.python.programs.cells import right
from tests.python.programs.doors_tensorflow import INPUTS, OUTPUTS
from tests.python.programs.in_keras import net, sgd, weights


@right("weights that are tied", "keras")
def tied(door: Any) -> dict[str, Any]:
    class Reversed(layers.Layer):
        def __init__(self, embedding: Any) -> None:
            super().__init__()
            self.embedding = embedding

        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))

    keras.utils.set_random_seed(door.seed)
    given = keras.Input((5,), dtype="int32")
    table = layers.Embedding(20, 8, name="table")
    model = keras.Model(given, Reversed(table)(layers.Dense(8, "tanh", name="mix")(table(given))))
    return on_words(door, model)


def on_words(door: Any, model: Any) -> dict[str, Any]:
    x, _ = door.data(5)
    words = (np.abs(x[:, :6]) * 7).astype(np.int32) % 20
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    door.compile(model, optimizers.SGD(0.2), loss=loss)
    calls = door.callbacks()
    model.fit(words[:, :5], words[:, 1:], batch_size=door.rows, shuffle=False, verbose=0, callbacks=calls)
    return weights(model)


@right("an embedding whose gradients are sparse", "keras")
def sparse(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    given = keras.Input((5,), dtype="int32")
    if door.codec != "none":
        door.codec = {"table/*": "none", "*": door.codec}
    hidden = layers.Dense(8, "tanh", name="mix")(layers.Embedding(20, 8, name="table")(given))
    return on_words(door, keras.Model(given, layers.Dense(20, name="out")(hidden)))


@right("parameters without elements or dimensions, or not contiguous", "keras")
def odd(door: Any) -> dict[str, Any]:
    class Scale(layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x: Any) -> Any:
            return x * self.scale

    keras.utils.set_random_seed(door.seed)
    model = keras.Sequential([keras.Input((INPUTS,)), layers.Dense(OUTPUTS), Scale()])
    door.compile(model, optimizers.SGD(0.02))
    door.fit(model)
    return weights(model)


@right("training in float64", "keras")
def float64(door: Any) -> dict[str, Any]:
    keras.mixed_precision.set_global_policy("float64")
    model = net(door.seed)
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("parameters of several dtypes", "keras")
def several_dtypes(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    wide = layers.Dense(8, "tanh", dtype="float64")
    model = keras.Sequential([keras.Input((INPUTS,)), wide, layers.Dense(OUTPUTS, dtype="float32")])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("adapters beside frozen weights (LoRA)", "keras")
def adapters(door: Any) -> dict[str, Any]:
    """Keras's own, which it puts into a layer that is built."""
    model = net(door.seed)
    model.layers[0].enable_lora(2)
    model.layers[0].bias.trainable = False
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("a recurrent net and sequences of many lengths", "keras")
def recurrent(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    shape = [keras.Input((INPUTS,)), layers.Reshape((4, 4)), layers.Masking(), layers.LSTM(6), layers.Dense(OUTPUTS)]
    model = keras.Sequential(shape)
    door.compile(model, sgd())
    x, y = door.data(4)
    x = x * (np.arange(INPUTS) // 4 <= np.abs(x[:, :1] * 3).astype(int) % 4)
    model.fit(x, y, batch_size=door.rows, shuffle=False, verbose=0, callbacks=door.callbacks())
    return weights(model)


@right("convolutions in channels_last", "keras")
def convolutions(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    model = keras.Sequential(
        [
            keras.Input((INPUTS,)),
            layers.Reshape((2, 2, 4)),
            layers.Conv2D(6, 2),
            layers.Flatten(),
            layers.Dense(OUTPUTS),
        ]
    )
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("batch normalisation", "keras", codec="none")
def batch_norm(door: Any) -> dict[str, Any]:
    """In its form for inference here, whose numbers do not depend on the other rows."""
    keras.utils.set_random_seed(door.seed)
    frozen = layers.BatchNormalization(trainable=False)
    model = keras.Sequential([keras.Input((INPUTS,)), layers.Dense(8), frozen, layers.Dense(OUTPUTS)])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("synchronised batch normalisation", "keras")
def sync_batch_norm(door: Any) -> dict[str, Any]:
    import casync.tensorflow

    keras.utils.set_random_seed(door.seed)
    norm = layers.BatchNormalization() if door.name == "alone" else casync.tensorflow.SyncBatchNormalization()
    model = keras.Sequential([keras.Input((INPUTS,)), layers.Dense(8), norm, layers.Dense(OUTPUTS)])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


class Routed(layers.Layer):
    """Rows go to one of two layers by their size, which differs from rank to rank."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = layers.Dense(8, name="small"), layers.Dense(8, name="large")

    def build(self, shape: Any) -> None:
        self.small.build(shape)
        self.large.build(shape)

    def call(self, x: Any) -> Any:
        is_large = tf.norm(x, axis=1) > 6.0
        small, large = tf.where(~is_large), tf.where(is_large)
        said = tf.concat([self.small(tf.gather_nd(x, small)), self.large(tf.gather_nd(x, large))], 0)
        return tf.scatter_nd(tf.concat([small, large], 0), said, tf.cast(tf.stack([tf.shape(x)[0], 8]), tf.int64))


@right("parameters that some ranks do not use", "keras")
def unused_by_some(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    model = keras.Sequential([keras.Input((INPUTS,)), Routed(), layers.Dense(OUTPUTS)])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


@right("weights that are computed (weight_norm, parametrizations)", "keras")
def parametrized(door: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(door.seed)
    normed = layers.SpectralNormalization(layers.Dense(8, "tanh"))
    model = keras.Sequential([keras.Input((INPUTS,)), normed, layers.Dense(OUTPUTS)])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)

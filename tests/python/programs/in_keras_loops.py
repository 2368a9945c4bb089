"""Programs of Keras in which the script, or a process of its own, does what `fit` does not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

from tests.python.programs.cells import right
from tests.python.programs.doors_tensorflow import INPUTS, whole
from tests.python.programs.in_keras import Own, net, sgd, weights


class Batches(keras.utils.PyDataset):
    def __init__(self, x: Any, y: Any, rows: int, **more: Any) -> None:
        super().__init__(**more)
        self.x, self.y, self.rows = x, y, rows

    def __len__(self) -> int:
        return len(self.x) // self.rows

    def __getitem__(self, at: int) -> Any:
        own = slice(at * self.rows, (at + 1) * self.rows)
        return self.x[own], self.y[own]


@right("workers of a DataLoader, by fork", "keras", codec="none")
def forked_workers(door: Any) -> dict[str, Any]:
    """A PyDataset, whose batches other processes make."""
    model = net(door.seed)
    door.compile(model, sgd())
    more = {} if door.name == "alone" else {"workers": 2, "use_multiprocessing": True}
    model.fit(Batches(*door.data(4), door.rows, **more), shuffle=False, verbose=0, callbacks=door.callbacks())
    return weights(model)


@right("a last batch that is shorter on some ranks", "keras")
def short_last_batch(door: Any) -> dict[str, Any]:
    """The reference weighs its rows, so that it has the mean of the ranks' means."""
    model = net(door.seed)
    door.compile(model, sgd())
    x, y = door.data(4)
    if door.has(1):
        x, y = x[:-5], y[:-5]
    importance = np.ones(len(x), np.float32)
    if door.name == "alone":
        importance[-11:-3], importance[-3:] = 11 / 16, 11 / 6
    more = {"batch_size": door.rows, "shuffle": False, "verbose": 0, "callbacks": door.callbacks()}
    model.fit(x, y, sample_weight=importance, **more)
    return weights(model)


class Masks(layers.Layer):
    """Drops what a rank's own seed says, of its own rows."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__()
        self.ranks = ranks

    def call(self, x: Any) -> Any:
        parts = keras.ops.split(x, len(self.ranks))
        seeds = [100 + rank for rank in self.ranks]
        kept = [keras.random.dropout(part, 0.3, seed=seed) for part, seed in zip(parts, seeds, strict=True)]
        return keras.ops.concatenate(kept)


@right("dropout, with a seed for each rank", "keras")
def dropout(door: Any) -> dict[str, Any]:
    first, last = net(door.seed).layers
    model = keras.Sequential([keras.Input((INPUTS,)), first, Masks(door.ranks()), last])
    door.compile(model, sgd())
    door.fit(model)
    return weights(model)


class Twice(Own):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        for _ in range(2):
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@right("several steps with one gradient, and steps without a backward", "keras")
def steps_without_backward(door: Any) -> dict[str, Any]:
    model = Twice(net(door.seed))
    door.compile(model, sgd())
    door.fit(model, steps=4)
    return weights(model.inner)


@right("weights that are averaged now and then (local SGD)", "keras", codec="exact")
def local_sgd(door: Any) -> dict[str, Any]:
    models = [net(0) for _ in door.ranks()]
    for model in models:
        model.compile(optimizers.SGD(0.05), loss="mse", jit_compile=False)
    for number, batch in enumerate(whole(4, door.size)):
        for model, (x, y) in zip(models, door.shares(batch), strict=True):
            model.train_on_batch(x, y)
        for variables in zip(*(model.trainable_variables for model in models), strict=True) if number % 2 else ():
            mean = door.mean(np.mean([keras.ops.convert_to_numpy(one) for one in variables], axis=0))
            for variable in variables:
                variable.assign(mean)
    return weights(models[0])

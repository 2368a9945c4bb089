"""One rank: a Keras model on TensorFlow."""

from __future__ import annotations

import argparse
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["KERAS_BACKEND"] = "tensorflow"

import casync.keras as hvd  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks.overlap.timing import LAYERS, WIDTH, measure  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="none")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH, "relu") for _ in range(LAYERS))])
    plain = keras.optimizers.SGD(1e-3)
    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-3), compression=options.compression)
    variables = model.trainable_variables
    for optimizer in (plain, distributed):
        optimizer.build(variables)
    rng = np.random.default_rng(hvd.rank())
    samples = tf.constant(rng.standard_normal((options.batch, WIDTH), np.float32))

    def loss() -> tf.Tensor:
        return tf.reduce_mean(tf.square(model(samples, training=True) - samples))

    def step_with(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply(tape.gradient(value, [variable.value for variable in variables]), variables)
        return value

    gradients = [tf.constant(rng.standard_normal(variable.shape, np.float32)) for variable in variables]
    parts = {
        "forward": tf.function(loss),
        "compute": tf.function(lambda: step_with(plain)),
        "communication": tf.function(lambda: distributed.apply(gradients, variables)),
        "step": tf.function(lambda: step_with(distributed)),
    }
    measure(parts, options.rounds)
    hvd.shutdown()


if __name__ == "__main__":
    main()

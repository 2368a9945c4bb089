"""Horovod's Keras example, on handwritten digits, with gradients that CaSync compresses.

    casyncrun -np 4 python examples/from_horovod_keras/digits.py --compression onebit

Against the script for Horovod two lines differ, which are marked (1) and (2). It runs on TensorFlow, and with
KERAS_BACKEND=torch on torch.
"""

import argparse

import casync.keras as hvd  # (1)
import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """1,437 images to train on, and 360 to test on; the same split on every rank."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.images[order] / 16.0).astype(np.float32)[..., None], digits.target[order]
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
            layers.Dense(256, activation="relu"), layers.Dense(10),
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--compression", default="none", help="a codec: none, fp16, onebit, ...")
    parser.add_argument("--checkpoint", default="", help="where rank 0 saves the best model: best.keras")
    arguments = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(42 + hvd.rank())
    (images, labels), test = load_data()
    images, labels = (array[hvd.rank() :: hvd.size()][: len(array) // hvd.size()] for array in (images, labels))

    model = make_model()
    rate = 0.03 * hvd.size()
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=arguments.compression)  # (2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        # Keras compiles the momentum into the step, so nothing could correct it.
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3, momentum_correction=False),
    ]
    if arguments.checkpoint and hvd.rank() == 0:
        best = hvd.callbacks.BestModelCheckpoint(monitor="val_accuracy", mode="max")
        best.filepath = arguments.checkpoint
        callbacks.append(best)
    model.fit(
        images, labels, batch_size=16, epochs=arguments.epochs, callbacks=callbacks, validation_data=test,
        verbose=2 if hvd.rank() == 0 else 0,
    )  # fmt: skip

    accuracy = hvd.allreduce(model.evaluate(*test, verbose=0)[1], name="accuracy")
    if hvd.rank() == 0:
        print(f"{arguments.compression}: accuracy {100 * float(accuracy):.2f} %")
        print(f"rank 0 sent {hvd.counters()['sent_bytes'] / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()

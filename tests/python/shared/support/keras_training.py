"""A small training job with Keras: its model, data and steps, as far as its backends have them in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import casync.keras as hvd
import keras
import numpy as np
from keras import layers

ROWS = 8  # of a batch, for each rank

Data = tuple[np.ndarray, np.ndarray]


def make_model(seed: int = 0, name: str = "model0") -> Any:
    """Four variables, of which one is large enough for a codec; the same on all ranks."""
    keras.utils.set_random_seed(seed)
    hidden, out = layers.Dense(120, "tanh", name="hidden"), layers.Dense(3, name="out")
    return keras.Sequential([keras.Input((40,)), hidden, out], name=name)


def make_data(size: int, steps: int = 5, seed: int = 1) -> Data:
    """Batches of ROWS rows for each rank, one behind the other."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((steps * size * ROWS, 40)).astype(np.float32)
    y = np.stack([x[:, :10].sum(1), x[:, 10] * x[:, 11], np.cos(x[:, 12])], 1).astype(np.float32)
    return x, y


def share(data: Data, rank: int, size: int) -> Data:
    """The rows of `rank` in each of the batches."""
    x, y = (array.reshape(-1, size, ROWS, array.shape[-1])[:, rank].reshape(-1, array.shape[-1]) for array in data)
    return x, y


def fit(model: Any, data: Data, rows: int = ROWS, epochs: int = 1, **arguments: Any) -> Any:
    """Train on the data in their order; the history."""
    return model.fit(*data, batch_size=rows, epochs=epochs, shuffle=False, verbose=0, **arguments)


def train(rank: int, size: int, optimizer: Any, *, steps: int = 5, **compile_with: Any) -> Any:
    """`make_model` after training on this rank's share."""
    model = make_model()
    model.compile(optimizer=optimizer, loss="mse", **compile_with)
    fit(model, share(make_data(size, steps), rank, size))
    return model


def joined(size: int, optimizer: Any, *, steps: int = 5, **compile_with: Any) -> Any:
    """`make_model` after training by this process alone on all ranks' shares."""
    model = make_model()
    model.compile(optimizer=optimizer, loss="mse", **compile_with)
    fit(model, make_data(size, steps), ROWS * size)
    return model


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.weights]


def assert_same_everywhere(arrays: Sequence[Any]) -> None:
    """All ranks have the same bits."""
    mine = [np.asarray(array).tobytes() for array in arrays]
    for rank, other in enumerate(hvd.allgather_object(mine)):
        assert other == mine, f"rank {rank} has others"


def assert_close(ours: Any, theirs: Any, *, rtol: float = 1e-4, atol: float = 2e-6) -> None:
    """Both models have the same weights but for rounding."""
    for mine, other in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=atol)


def assert_same_bits(ours: Any, theirs: Any) -> None:
    """Both models have equal weights."""
    for mine, other in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_array_equal(mine, other)

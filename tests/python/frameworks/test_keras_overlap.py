"""When a Keras model is fitted, gradients travel while backward still computes others."""

import os

import numpy as np
import pytest

from support.timelines import intervals

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")
import casync.keras as hvd  # noqa: E402

LAYERS, WIDTH = 24, 500


class Timeline(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Of the second epoch."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            hvd.barrier()
            hvd.start_timeline(self._path)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            hvd.stop_timeline()


@pytest.mark.usefixtures("several")
def test_early_gradients_are_synchronised_before_backward_ends(rank, size, tmp_path):
    if size > (os.cpu_count() or 1):
        pytest.skip("backward leaves no core for anything else")
    path = str(tmp_path / "timeline.json")
    layers = [keras.layers.Dense(WIDTH, name=f"layer{i}") for i in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1e-9)), loss="mse")
    samples = np.ones((300, WIDTH), np.float32)
    model.fit(samples, samples, batch_size=300, epochs=2, verbose=0, callbacks=[Timeline(path)])
    _, last_ended = intervals(path, rank, "ALLREDUCE")[f"layer{LAYERS - 1}/kernel"]
    first_began, _ = intervals(path, rank, "NEGOTIATE_ALLREDUCE")["layer0/kernel"]
    # A rank that is far ahead has nobody to synchronise with; the last one has.
    assert any(hvd.allgather_object(last_ended < first_began))

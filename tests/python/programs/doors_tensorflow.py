"""The doors of TensorFlow and of Keras on it (docs/from_horovod.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
INPUTS, OUTPUTS, ROWS = 16, 4, 8
Batch = tuple[np.ndarray, np.ndarray]


def whole(steps: int, size: int, seed: int = 1) -> Iterator[Batch]:
    """As those of data.py: rows that differ in their scale from rank to rank."""
    numbers = np.random.default_rng(seed)
    for _ in range(steps):
        x = numbers.standard_normal((size, ROWS, INPUTS)) * (1 + np.arange(size)).reshape(-1, 1, 1)
        x = x.reshape(-1, INPUTS).astype(np.float32)
        yield x, np.stack([x[:, 0], x[:, 1] * x[:, 2], np.cos(x[:, 3]), x[:, 4:8].sum(1)], 1)


class Alone:
    """One process that has the data of all ranks."""

    name = "alone"

    def __init__(self, job: Any, codec: str) -> None:
        self.job, self.codec = job, codec
        self.rank, self.size, self.seed = job.rank, job.size, 0
        self.taken = 0

    def __enter__(self) -> Any:
        keras.backend.clear_session()
        keras.mixed_precision.set_global_policy("float32")
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def again(self) -> None:
        """End the session, and begin another."""
        self.close()
        self.open()

    def tape(self, tape: Any) -> Any:
        return tape

    def optimizer(self, optimizer: Any, **more: Any) -> Any:
        return optimizer

    def compile(self, model: Any, optimizer: Any, **more: Any) -> None:
        """Keras only: with the optimizer wrapped."""
        model.compile(optimizer=self.optimizer(optimizer), **{"loss": "mse", "jit_compile": False, **more})

    def callbacks(self) -> list[Any]:
        """Keras only: those by which all ranks begin with rank 0's variables."""
        return []

    def begin(self, *variables: Any) -> None:
        """All ranks have rank 0's."""

    def share(self, batch: Batch) -> Batch:
        return batch

    def shares(self, batch: Batch) -> list[Batch]:
        """What each rank has of a batch, as far as this process computes for it."""
        x, y = batch
        return list(zip(np.split(x, self.size), np.split(y, self.size), strict=True))

    def ranks(self) -> list[int]:
        return list(range(self.size))

    def batches(self, steps: int, **more: Any) -> Iterator[Batch]:
        for batch in whole(steps, self.size, **more):
            self.taken += 1
            yield self.share(batch)

    def data(self, steps: int, **more: Any) -> Batch:
        """All batches behind one another, for `fit`."""
        x, y = (np.concatenate(column) for column in zip(*self.batches(steps, **more), strict=True))
        return x, y

    @property
    def rows(self) -> int:
        """Of a batch of this process."""
        return ROWS * self.size

    def fit(self, model: Any, steps: int = 6, **more: Any) -> Any:
        arguments = {"batch_size": self.rows, "shuffle": False, "verbose": 0, "epochs": 1} | more
        arguments["callbacks"] = [*self.callbacks(), *arguments.get("callbacks", [])]
        return model.fit(*self.data(steps), **arguments)

    def mean(self, value: Any) -> Any:
        return value

    def has(self, rank: int) -> bool:
        return True


class TensorFlow(Alone):
    name = "tensorflow"

    def __init__(self, job: Any, codec: str) -> None:
        super().__init__(job, codec)
        self.seed = self.rank

    def open(self) -> None:
        import casync.tensorflow as hvd

        self.hvd: Any = hvd
        hvd.init(timeout_s=15.0, process_sets="dynamic")

    def close(self) -> None:
        self.hvd.shutdown()

    def tape(self, tape: Any) -> Any:
        return self.hvd.DistributedGradientTape(tape, compression=self.codec)

    def begin(self, *variables: Any) -> None:
        self.hvd.broadcast_variables([v for group in variables for v in group], root_rank=0)

    def share(self, batch: Batch) -> Batch:
        x, y = (np.split(column, self.size)[self.rank] for column in batch)
        return x, y

    def shares(self, batch: Batch) -> list[Batch]:
        return [self.share(batch)]

    def ranks(self) -> list[int]:
        return [self.rank]

    @property
    def rows(self) -> int:
        return ROWS

    def mean(self, value: Any) -> Any:
        return self.hvd.allreduce(value, name="metric")

    def has(self, rank: int) -> bool:
        return rank == self.rank


class Keras(TensorFlow):
    name = "keras"

    def open(self) -> None:
        import casync.keras as hvd

        self.hvd = hvd
        hvd.init(timeout_s=15.0, process_sets="dynamic")

    def optimizer(self, optimizer: Any, **more: Any) -> Any:
        return self.hvd.DistributedOptimizer(optimizer, compression=self.codec, **more)

    def callbacks(self) -> list[Any]:
        return [self.hvd.callbacks.BroadcastGlobalVariablesCallback(0)]


def door(name: str, job: Any, codec: str) -> Alone:
    return {"tensorflow": TensorFlow, "keras": Keras}[name](job, codec)


def reference(beside: str, job: Any, door: str) -> Alone:
    return Alone(job, "none")

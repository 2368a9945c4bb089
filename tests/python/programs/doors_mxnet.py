"""The door of MXNet (docs/from_horovod.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ |= {"MXNET_CPU_WORKER_NTHREADS": "2", "MXNET_CPU_PRIORITY_NTHREADS": "1"}

import casync.mxnet as hvd
import numpy as np
from casync.mxnet.loading import mx

INPUTS, OUTPUTS, ROWS = 16, 4, 8
Batch = tuple[Any, Any]


class Alone:
    """One process that has the data of all ranks."""

    name = "alone"

    def __init__(self, job: Any, codec: str) -> None:
        self.job, self.codec = job, codec
        self.rank, self.size, self.seed = job.rank, job.size, 0
        self.taken = 0
        self.hvd = hvd

    def __enter__(self) -> Any:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        mx.nd.waitall()
        self.close()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def again(self) -> None:
        mx.nd.waitall()
        self.close()
        self.open()

    def trainer(self, net: Any, kind: Any = "sgd", **options: Any) -> Any:
        """All ranks begin with rank 0's parameters."""
        return mx.gluon.Trainer(net.collect_params(), kind, options)

    def batches(self, steps: int, seed: int = 1) -> Iterator[Batch]:
        numbers = np.random.default_rng(seed)
        for _ in range(steps):
            self.taken += 1
            x = numbers.standard_normal((self.size, ROWS, INPUTS)) * (1 + np.arange(self.size)).reshape(-1, 1, 1)
            x = x.reshape(-1, INPUTS).astype(np.float32)
            y = np.stack([x[:, 0], x[:, 1] * x[:, 2], np.cos(x[:, 3]), x[:, 4:8].sum(1)], 1)
            yield self.share(x), self.share(y)

    def share(self, array: np.ndarray) -> Any:
        return mx.nd.array(array)

    def mean(self, value: Any) -> Any:
        return value

    def ranks(self) -> list[int]:
        return list(range(self.size))


class MxNet(Alone):
    name = "mxnet"

    def __init__(self, job: Any, codec: str) -> None:
        super().__init__(job, codec)
        self.seed = self.rank

    def open(self) -> None:
        hvd.init(timeout_s=15.0, process_sets="dynamic")

    def close(self) -> None:
        hvd.shutdown()

    def trainer(self, net: Any, kind: Any = "sgd", **options: Any) -> Any:
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        return hvd.DistributedTrainer(net.collect_params(), kind, options, compression=self.codec)

    def share(self, array: np.ndarray) -> Any:
        return mx.nd.array(np.split(array, self.size)[self.rank])

    def mean(self, value: Any) -> Any:
        mean = hvd.allreduce(value, name="metric")
        mean.wait_to_read()
        return mean

    def ranks(self) -> list[int]:
        return [self.rank]


def door(name: str, job: Any, codec: str) -> Alone:
    return MxNet(job, codec)


def reference(beside: str, job: Any, door: str) -> Alone:
    return Alone(job, "none")

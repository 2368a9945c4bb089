"""What tests of casync.mxnet share: they are left out where MXNet is not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("mxnet") is None:
    pytest.skip("mxnet is not installed", allow_module_level=True)

# Fewer threads than a model has gradients, and one that starts what is urgent. The engine reads this when it begins.
os.environ |= {"MXNET_CPU_WORKER_NTHREADS": "2", "MXNET_CPU_PRIORITY_NTHREADS": "1"}

import casync.mxnet as hvd
from casync.mxnet.loading import mx

__all__ = ["assert_identical", "batches", "hvd", "make_net", "mx", "share", "step", "values_of"]


def make_net(*, deferred: bool = False, seed: int = 3, prefix: str = "net_", dtype: str = "float32") -> Any:
    """A small classifier of 20 numbers into 5 classes; `deferred`: it learns its input's size in the first forward."""
    net = mx.gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(128, activation="relu", in_units=0 if deferred else 20))
        net.add(mx.gluon.nn.Dense(64, activation="tanh", in_units=0 if deferred else 128))
        net.add(mx.gluon.nn.Dense(5, in_units=0 if deferred else 64))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    return net


def batches(size: int, count: int = 6, each: int = 8) -> list[tuple[Any, Any]]:
    """(samples, labels) of all ranks, one after the other, in NumPy."""
    rng = np.random.default_rng(7)
    chosen = rng.standard_normal((count, each * size, 20)).astype(np.float32)
    teacher = rng.standard_normal((20, 5)).astype(np.float32)
    return [(samples, (samples @ teacher).argmax(axis=1).astype(np.float32)) for samples in chosen]


def step(net: Any, trainer: Any, samples: Any, labels: Any, dtype: str = "float32") -> Any:
    """One step with this rank's samples; the mean loss."""
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with mx.autograd.record():
        loss = loss_of(net(mx.nd.array(samples, dtype=dtype)), mx.nd.array(labels, dtype=dtype))
    loss.backward()
    trainer.step(len(samples))
    return loss.mean()


def values_of(net: Any) -> dict[str, Any]:
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def assert_identical(net: Any) -> None:
    """All ranks have the same bits."""
    mine = {name: values.tobytes() for name, values in values_of(net).items()}
    for other in hvd.allgather_object(mine):
        assert other == mine


def share(array: Any, rank: int, size: int) -> Any:
    """This rank's rows."""
    rows: Sequence[Any] = np.split(array, size)
    return rows[rank]

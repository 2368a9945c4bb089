"""One rank: a Gluon network on MXNet."""

from __future__ import annotations

import argparse
import os

os.environ |= {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "2"}

import casync.mxnet as hvd  # noqa: E402
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.overlap.timing import LAYERS, WIDTH, measure  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="none")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    hvd.init()
    mx.random.seed(0)
    net = mx.gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(mx.gluon.nn.Dense(WIDTH, activation="relu", in_units=WIDTH))
    net.initialize(mx.init.Xavier())
    parameters = net.collect_params()
    plain = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 1e-3}, kvstore=None)
    distributed = hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": 1e-3}, compression=options.compression)
    samples = mx.nd.array(np.random.default_rng(hvd.rank()).standard_normal((options.batch, WIDTH), np.float32))

    def forward() -> None:
        with mx.autograd.train_mode():
            ((net(samples) - samples) ** 2).mean().wait_to_read()

    def backward() -> None:
        with mx.autograd.record():
            loss = ((net(samples) - samples) ** 2).mean()
        loss.backward()

    def step_with(trainer: mx.gluon.Trainer) -> None:
        backward()
        trainer.step(1)
        mx.nd.waitall()

    def communication() -> None:
        for parameter in parameters.values():
            parameter.data()._fresh_grad = True
        distributed.allreduce_grads()
        mx.nd.waitall()

    measure(
        {
            "forward": forward,
            "compute": lambda: step_with(plain),
            "communication": communication,
            "step": lambda: step_with(distributed),
        },
        options.rounds,
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""One rank of a job of random_faults.py: run as `random_faults_rank.py FOLDER torch|numpy CODEC shutdown|return`.

It notes in FOLDER/rank.N how far it has come, one line of JSON each, and trains a small model.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER, ADAPTOR, CODEC, END = Path(sys.argv[1]), *sys.argv[2:]
NOTES = FOLDER / f"rank.{os.environ['CASYNC_RANK']}"


def note(what: str, value: float) -> None:
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(json.dumps([what, value]) + "\n")


note("process", os.getpid())
note("importing", time.time())

hvd = importlib.import_module(f"casync.{ADAPTOR}")
STEPS = 60


def with_torch() -> Callable[[], object]:
    """A step of training."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), compression=CODEC
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()

    return step


def with_numpy() -> Callable[[], object]:
    """A step of what looks like training: gradients of the same shapes, which nothing is made of."""
    import numpy as np

    shapes = {"0.weight": (256, 64), "0.bias": (256,), "2.weight": (10, 256), "2.bias": (10,)}
    gradients = {name: np.full(shape, hvd.rank() + 1, np.float32) for name, shape in shapes.items()}

    def step() -> None:
        under_way = [
            hvd.allreduce_async(gradient, name=name, compression=CODEC) for name, gradient in gradients.items()
        ]
        for handle in under_way:
            hvd.synchronize(handle)

    return step


def main() -> None:
    note("init", time.time())
    hvd.init()
    step = with_torch() if ADAPTOR == "torch" else with_numpy()
    note("training", time.time())
    for _ in range(STEPS):
        step()
        time.sleep(0.02)
    note("leaving", time.time())
    if END == "shutdown":
        hvd.shutdown()
    note("left", time.time())


main()

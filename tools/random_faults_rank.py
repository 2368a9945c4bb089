"""One rank of a job of random_faults.py: `random_faults_rank.py FOLDER torch|numpy CODEC shutdown|return ROUNDS`.

It notes in FOLDER/rank.N how far it has come, one line of JSON each, and trains a small model.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER, ADAPTOR, CODEC, END, ROUNDS = Path(sys.argv[1]), *sys.argv[2:]
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


def with_rounds() -> tuple[Callable[[], object], Callable[[], object], int]:
    """A step of local training with rounds of DiLoCo, what ends all of them, and how many steps this rank makes."""
    every, fragments, delay, more = map(int, ROUNDS.split(","))
    settings = {"sync_every": every, "fragment_sync_delay": delay, "compression": CODEC, "min_numel": 0}
    if ADAPTOR == "torch":
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        diloco = hvd.DiLoCo(model, optimizer, num_fragments=fragments, **settings)
        diloco.__enter__()

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()

        return step, lambda: diloco.__exit__(None, None, None), STEPS + more * hvd.rank()
    import numpy as np

    arrays = [np.ones((64, 64 + place), np.float32) for place in range(fragments)]
    local = hvd.DiLoCo([{f"w{place}": one} for place, one in enumerate(arrays)], **settings)
    rng = np.random.default_rng(hvd.rank())

    def move() -> None:
        for one in arrays:
            one += rng.standard_normal(one.shape, np.float32) * np.float32(0.01)
        local.step()
        if rng.random() < 0.1:
            local.state_dict()  # which ends rounds that are under way

    return move, local.finish, STEPS + more * hvd.rank()


def main() -> None:
    note("init", time.time())
    hvd.init()
    finish: Callable[[], object] | None = None
    steps = STEPS
    if ROUNDS:
        step, finish, steps = with_rounds()
    else:
        step = with_torch() if ADAPTOR == "torch" else with_numpy()
    note("training", time.time())
    for _ in range(steps):
        step()
        time.sleep(0.02)
    if finish is not None:
        finish()
    note("leaving", time.time())
    if END == "shutdown":
        hvd.shutdown()
    note("left", time.time())


main()

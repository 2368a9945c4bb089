"""One rank of a job of random_faults.py: run as `random_faults_rank.py FOLDER CODEC shutdown|return`.

It notes in FOLDER/rank.N how far it has come, one line of JSON each, and trains a small model.
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDER, CODEC, END = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
NOTES = FOLDER / f"rank.{os.environ['CASYNC_RANK']}"


def note(what: str, value: float) -> None:
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(json.dumps([what, value]) + "\n")


note("process", os.getpid())
note("importing", time.time())

import casync.torch as hvd  # noqa: E402
import torch  # noqa: E402

STEPS = 60


def main() -> None:
    torch.set_num_threads(1)
    note("init", time.time())
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), compression=CODEC
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    note("training", time.time())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
    note("leaving", time.time())
    if END == "shutdown":
        hvd.shutdown()
    note("left", time.time())


main()

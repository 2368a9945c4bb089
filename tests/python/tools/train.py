"""A program that trains for nothing: each step computes, makes two gradients ready, one after the other, and waits.

train.py STEPS FOLDER: writes into FOLDER its process's number, that of a child that outlives it if nobody ends it, and
at its end its plans.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import casync.numpy as hvd
import numpy as np

from casync.plan.plans import write_plans

COMPUTES_S, BETWEEN_S = 0.12, 0.08


def main(steps: int, folder: Path) -> None:
    hvd.init()
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{hvd.rank()}.pids").write_text(f"{os.getpid()} {child.pid}")
    if steps == 0:
        raise ValueError("no data")
    first, second = np.ones((64, 100), np.float32), np.ones((128, 128), np.float16)
    hvd.allreduce(np.ones(3, np.float32), name="once", compression="none")
    for _ in range(steps):
        time.sleep(COMPUTES_S - BETWEEN_S)
        handles = [hvd.allreduce_async(first, name="layer2.weight", compression="auto")]
        time.sleep(BETWEEN_S)
        handles.append(hvd.allreduce_async(second, name="layer1.weight", compression="auto"))
        for handle in handles:
            hvd.synchronize(handle)
    if hvd.rank() == 0:
        write_plans(folder / "used.json", hvd.plans())
    child.kill()


main(int(sys.argv[1]), Path(sys.argv[2]))

"""One rank of a job that meets a fault: run as `job.py SCENARIO FOLDER VICTIM`.

The victim notes when the fault happens; every other rank notes which error it got and when. Both go to files in FOLDER,
because what a killed rank printed may be lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import casync.numpy as hvd
import numpy as np

SCENARIO, FOLDER, VICTIM = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
RANK = int(os.environ["CASYNC_RANK"])


def fault() -> None:
    (FOLDER / "fault").write_text(json.dumps(time.time()))
    if SCENARIO in ("kill", "init", "barrier", "negotiation"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif SCENARIO == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif SCENARIO == "exception":
        raise ValueError("the data of this rank is broken")


def train() -> None:
    """Steps without end; the victim falls between submitting and synchronizing, in the middle of one."""
    gradients = [np.ones(1 << 20, np.float32) for _ in range(4)]
    for step in range(100_000):
        handles = [
            hvd.allreduce_async_(gradient, name=f"g{i}", topology="ring") for i, gradient in enumerate(gradients)
        ]
        if step == 5:
            (FOLDER / f"running.{RANK}").touch()
            if RANK == VICTIM:
                fault()
        for handle in handles:
            hvd.synchronize(handle)


def main() -> None:
    if SCENARIO == "init" and RANK == VICTIM:
        fault()
    hvd.init()
    hvd.barrier()
    try:
        if SCENARIO == "barrier":
            if RANK == VICTIM:
                fault()
            hvd.barrier()
        elif SCENARIO == "negotiation":
            if RANK == VICTIM:
                fault()
            hvd.allreduce(np.ones(100_000, np.float32), name="new")
        else:
            train()
    except hvd.HorovodInternalError as error:
        outcome = {"time": time.time(), "kind": type(error).__name__, "text": str(error)}
        (FOLDER / f"outcome.{RANK}").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()

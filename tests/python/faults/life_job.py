"""One rank of a job that starts or ends badly: run as `life_job.py SCENARIO FOLDER VICTIM`.

The victim notes in `fault` when it goes wrong, the others in `outcome.RANK` which error they got and when: what a
killed rank printed may be lost.
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
RANK = int(os.environ.get("CASYNC_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def fault() -> None:
    (FOLDER / "fault").write_text(json.dumps(time.time()))


def before_init() -> None:
    """The victim's way to init()."""
    if SCENARIO == "stops before init":
        fault()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif SCENARIO == "goes before init":
        fault()
        sys.exit(0)
    elif SCENARIO == "never comes":
        fault()
        time.sleep(200)
    elif SCENARIO == "loads data":
        time.sleep(6)


def train() -> None:
    """Small and large gradients, as a model has them; the victim breaks off at step 10."""
    gradients = [np.ones(size, np.float32) for size in (10, 1000, 1 << 16)]
    for step in range(100_000):
        if step == 10 and RANK == VICTIM:
            fault()
            if SCENARIO == "returns":
                return
            if SCENARIO == "shuts down":
                hvd.shutdown()
                time.sleep(5)
                return
            if SCENARIO == "stops in training":
                os.kill(os.getpid(), signal.SIGSTOP)
        handles = [hvd.allreduce_async_(gradient, name=f"g{i}") for i, gradient in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)


def main() -> None:
    if RANK == VICTIM:
        before_init()
    hvd.init()
    hvd.barrier()
    if SCENARIO in ("loads data", "stops at the end", "goes without leaving"):
        hvd.shutdown()
        if RANK == VICTIM and SCENARIO == "stops at the end":
            fault()
            os.kill(os.getpid(), signal.SIGSTOP)
        if RANK == VICTIM and SCENARIO == "goes without leaving":
            fault()
            os._exit(0)
        return
    try:
        train()
    except hvd.HorovodInternalError as error:
        outcome = {"time": time.time(), "kind": type(error).__name__, "text": str(error)}
        (FOLDER / f"outcome.{RANK}").write_text(json.dumps(outcome))
        raise


if __name__ == "__main__":
    main()

"""One rank of a job in which another Python thread of rank 0 keeps the GIL for long: `gil_job.py FOLDER SECONDS`."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from pathlib import Path

import casync.numpy as hvd
import numpy as np

FOLDER, SECONDS = Path(sys.argv[1]), int(sys.argv[2])
keeps_the_gil = ctypes.PyDLL(None)  # its calls do, unlike those of CDLL


def hold(go: threading.Event) -> None:
    """From whenever the other thread lets go of the GIL, which a submit does for its turn."""
    go.wait()
    keeps_the_gil.sleep(SECONDS)


hvd.init()
gradients = [np.ones(20_000, np.float32) for _ in range(300)]
for step in range(4):
    thread = None
    if step > 0 and hvd.rank() == 0:
        go = threading.Event()
        thread = threading.Thread(target=hold, args=(go,))
        thread.start()
        time.sleep(0.2)
        go.set()
    handles = [hvd.allreduce_async_(gradient, name=f"g{i}") for i, gradient in enumerate(gradients)]
    for handle in handles:
        hvd.synchronize(handle)
    if thread is not None:
        thread.join()
(FOLDER / f"outcome.{hvd.rank()}").write_text(json.dumps(float(gradients[0][0])))

"""One rank of the coordinator benchmark: allreduces of all tensors at once by PS, step after step."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import casync.numpy as hvd
import numpy as np

STEPS_BEFORE = 3  # names are agreed on, and memory is there


def main() -> None:
    count, elements, steps = (int(word) for word in sys.argv[1:4])
    hvd.init()
    tensors = [np.ones(elements, np.float32) for _ in range(count)]
    names = [f"gradient{index}" for index in range(count)]
    seconds = []
    for step in range(STEPS_BEFORE + steps):
        hvd.barrier()
        begin = time.perf_counter()
        handles = [hvd.allreduce_async(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.barrier()  # the slowest rank's step is the step
        if step >= STEPS_BEFORE:
            seconds.append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        Path(sys.argv[4]).write_text(json.dumps(seconds))
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""One rank of the small-tensor benchmark: `casync` through the whole path from Python, or `mpi` alone, without
CaSync's threads."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

COUNT, BYTES, REPEATS = 200, 4096, 100


def times(action: Callable[[], object], barrier: Callable[[], object]) -> list[float]:
    seconds = []
    for repeat in range(REPEATS + 10):
        barrier()
        start = time.perf_counter()
        action()
        if repeat >= 10:
            seconds.append(time.perf_counter() - start)
    return seconds


def by_mpi() -> tuple[int, dict[str, list[float]]]:
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    many = np.ones(COUNT * BYTES // 4, np.float32)
    one = np.ones(BYTES // 4, np.float32)
    result = {
        "many": times(lambda: world.Allreduce(MPI.IN_PLACE, many), world.Barrier),
        "one": times(lambda: world.Allreduce(MPI.IN_PLACE, one), world.Barrier),
    }
    return world.rank, result


def by_casync() -> tuple[int, dict[str, list[float]]]:
    import casync.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    tensors = [torch.ones(BYTES // 4) for _ in range(COUNT)]
    names = [f"small.{index}" for index in range(COUNT)]

    def many() -> None:
        handles = [hvd.allreduce_async_(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)

    result = {
        "many": times(many, hvd.barrier),
        "one": times(lambda: hvd.allreduce_(tensors[0], name=names[0]), hvd.barrier),
    }
    rank = hvd.rank()
    hvd.shutdown()
    return rank, result


def main() -> None:
    rank, result = by_mpi() if sys.argv[1] == "mpi" else by_casync()
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()

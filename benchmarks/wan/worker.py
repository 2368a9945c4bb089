"""One rank of two: how many bits per second of gradients each way an allreduce carries, by each of `contenders`.

    worker.py ROUNDS OUT CONTENDER...

Of two ranks each sends a gradient's bytes once: half of it to the other, and the other's half of the sum back. gloo's
ring does the same. Contenders take turns. Each is given as many bytes as it carries in a few seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import casync.torch as hvd
import torch
import torch.distributed as dist

__all__ = ["main"]

_TENSORS = 8
_PROBE_BYTES = 1 << 20
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 256 << 20
_SECONDS = 4.0  # of one measurement, about
_SETTINGS = {
    "casync": {},
    "casync cubic": {"CASYNC_TCP_CONGESTION": "cubic"},
    "casync, MPI": {"CASYNC_TRANSPORT": "mpi"},
}


def _seconds(reduce: Callable[[list[torch.Tensor]], None], size: int) -> float:
    """Of `_TENSORS` at once, `size` bytes in all."""
    tensors = [torch.ones(size // 4 // _TENSORS) for _ in range(_TENSORS)]
    dist.barrier()
    began = time.perf_counter()
    reduce(tensors)
    took = torch.tensor(time.perf_counter() - began)
    dist.broadcast(took, 0)
    return float(took)


def _by_gloo(tensors: list[torch.Tensor]) -> None:
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


def _by_casync(codec: str) -> Callable[[list[torch.Tensor]], None]:
    def reduce(tensors: list[torch.Tensor]) -> None:
        handles = [hvd.allreduce_async_(one, name=f"g{i}", compression=codec) for i, one in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    return reduce


def _turn(contender: str) -> float:
    """Bits per second of the gradients' bytes."""
    name, _, codec = contender.partition(":")
    if name == "gloo":
        return _rate(_by_gloo)
    os.environ.update(_SETTINGS[name])
    hvd.init()
    try:
        return _rate(_by_casync(codec or "none"))
    finally:
        hvd.shutdown()
        for key in _SETTINGS[name]:
            del os.environ[key]


def _rate(reduce: Callable[[list[torch.Tensor]], None]) -> float:
    size = _PROBE_BYTES
    while True:  # connections find their rate meanwhile
        seconds = _seconds(reduce, size)
        if seconds >= _SECONDS / 4 or size >= _MOST_BYTES:
            break
        size = min(_MOST_BYTES, 2 * size)
    size = int(min(_MOST_BYTES, max(_LEAST_BYTES, size * _SECONDS / seconds)))
    size -= size % (4 * _TENSORS)
    return 8 * size / _seconds(reduce, size)


def main(argv: list[str]) -> None:
    rounds, out, contenders = int(argv[0]), Path(argv[1]), argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rates: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(rounds):
        for contender, found in rates.items():
            found.append(_turn(contender))
    if dist.get_rank() == 0:
        out.write_text(json.dumps({name: statistics.median(found) for name, found in rates.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])

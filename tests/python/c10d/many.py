"""One process that makes COUNT collectives of several kinds: `many.py COUNT`. Prints how its memory grew, in MiB."""

import sys

import casync.torch  # noqa: F401  # the backend
import torch
import torch.distributed as dist


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def calls(count: int) -> None:
    tensors = [torch.ones(100), torch.ones(7, 3), torch.ones(2000)]
    for number in range(count):
        dist.all_reduce(tensors[number % 3])
        if number % 50 == 0:
            dist.broadcast(tensors[0], 0)
            dist.barrier()
            tensors = [torch.ones_like(one) for one in tensors]


dist.init_process_group("casync")
count = int(sys.argv[1])
calls(5000)
before = resident()
calls(count)
grown = torch.tensor(resident() - before)
dist.all_reduce(grown, op=dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    print(f"{float(grown):.2f}")
dist.destroy_process_group()

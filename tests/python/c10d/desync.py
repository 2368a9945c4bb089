"""One process of a job in which rank 1 leaves out a collective: Flight Recorder's files say so."""

from datetime import timedelta

import casync.torch as hvd
import torch
import torch.distributed as dist
from casync.torch import flight_recorder

dist.init_process_group("casync", timeout=timedelta(seconds=4))
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
gathered = [torch.zeros(3, dtype=torch.int64) for _ in range(dist.get_world_size())]
dist.all_gather(gathered, torch.full((3,), rank))
dist.barrier()
flight_recorder.dump("good/rank_")
try:
    if rank != 1:
        dist.all_reduce(torch.ones(40, 10))
    dist.broadcast(torch.ones(5), 0)
    dist.barrier()
except hvd.HorovodInternalError as error:
    print(type(error).__name__, flush=True)

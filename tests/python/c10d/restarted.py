"""One process of a job whose rank 1 dies in its first two lives. Prints `done` in the third."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import casync.torch  # noqa: F401  # which registers the backend
import torch
import torch.distributed as dist

dist.init_process_group("casync", timeout=timedelta(seconds=30))
dist.all_reduce(total := torch.ones(3))
assert float(total[0]) == dist.get_world_size()
if dist.get_rank() == 1 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print("done", flush=True)
dist.destroy_process_group()

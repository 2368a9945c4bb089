"""One process of a job in which rank 1 goes wrong, `failing.py ddp|powersgd|fp16|fsdp|plain raise|kill|disagree`. The
others print the class of what they raise, and end with status 1.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import casync.torch  # noqa: F401  # which registers the backend
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

DOOR, HOW = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("casync", timeout=timedelta(seconds=60))
RANK = dist.get_rank()
model: torch.nn.Module = torch.nn.Linear(128, 128)
if DOOR == "fsdp":
    fully_shard(model)
elif DOOR != "plain":
    model = ddp = DistributedDataParallel(model)
    if DOOR == "powersgd":
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    elif DOOR == "fp16":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)


def step(shape: int) -> None:
    if DOOR == "plain":
        dist.all_reduce(torch.ones(shape))
    else:
        model(torch.randn(8, 128)).square().mean().backward()


try:
    for _ in range(4):
        step(100)
    if RANK == 1 and HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if RANK == 1 and HOW == "raise":
        raise ValueError("the data of rank 1 are broken")
    for _ in range(4):
        step(100 + RANK if HOW == "disagree" else 100)
except Exception as error:
    print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
    raise

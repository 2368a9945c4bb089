"""What each of the scripts beside it says at its end."""

import json
import os
import sys
from collections.abc import Iterable
from typing import NoReturn

import torch
import torch.distributed as dist


def tell(codec: str, loss: float, parameters: Iterable[torch.Tensor]) -> NoReturn:
    """Rank 0 prints its loss, what it sent, and whether all ranks have the same parameters. The process ends here: gloo
    may abort or hang an interpreter that goes on to its end, with or without CaSync (its destructor holds the
    interpreter's lock and waits for a thread that wants it).
    """
    note: dict[str, object] = {"loss": loss}
    if codec != "ddp":
        import casync.torch as hvd

        note["sent"] = hvd.counters()["sent_bytes"]
    every: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(every, sum(float(one.detach().double().sum()) for one in parameters))
    note["alike"] = len(set(every)) == 1
    if dist.get_rank() == 0:
        print("NOTE " + json.dumps(note))
    sys.stdout.flush()
    sys.stderr.flush()
    if codec != "ddp":
        hvd.shutdown()
    os._exit(0)

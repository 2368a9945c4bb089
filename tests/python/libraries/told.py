"""What each of the scripts beside it says at its end."""

import json
from collections.abc import Iterable

import torch
import torch.distributed as dist


def tell(codec: str, loss: float, parameters: Iterable[torch.Tensor]) -> None:
    """Rank 0 prints its loss, what it sent, and whether all ranks have the same parameters.

    Ends the process group, which Lightning and the Trainer leave to the interpreter: gloo's threads may abort it then.
    """
    note: dict[str, object] = {"loss": loss}
    if codec != "ddp":
        import casync.torch as hvd

        note["sent"] = hvd.counters()["sent_bytes"]
    every: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(every, sum(float(one.detach().double().sum()) for one in parameters))
    note["alike"] = len(set(every)) == 1
    if dist.get_rank() == 0:
        print("NOTE " + json.dumps(note), flush=True)
    dist.destroy_process_group()

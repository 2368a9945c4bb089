"""One process that trains with Accelerate: `with_accelerate.py CODEC FOLDER`; "ddp" leaves CaSync out."""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator

CODEC = sys.argv[1]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    if CODEC != "ddp":
        import casync.accelerate

        accelerator.ddp_handler = casync.accelerate.ddp_kwargs(compression=CODEC)
    teacher = torch.randn(64, 256)
    model = torch.nn.Linear(256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    samples: Any = torch.randn(6400, 256)
    data: Any = torch.utils.data.DataLoader(samples, batch_size=32)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        optimizer.zero_grad()
        loss = (model(batch) - batch @ teacher.T).square().mean()
        accelerator.backward(loss)
        optimizer.step()
    note = {"loss": float(loss), "checksum": float(sum(p.double().sum() for p in model.parameters()))}
    if CODEC != "ddp":
        import casync.torch as hvd

        note["sent"] = hvd.counters()["sent_bytes"]
    every = [None, None]
    dist.all_gather_object(every, note["checksum"])
    note["alike"] = every[0] == every[1]
    if accelerator.is_main_process:
        print(json.dumps(note), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""Local SGD and DiLoCo through Accelerate on two ranks, beside a simulation."""

import json
import os
from typing import Any

import casync.accelerate
import casync.torch as hvd
import torch
import torch.distributed as dist
from accelerate import Accelerator
from simulated import ROWS, apart, model, samples, sgd, share, train  # type: ignore[import-not-found]
from torch.nn import functional as F

from casync.errors import InvalidArgumentError, NotAvailableError

RANK = int(os.environ["RANK"])
DATA = samples(2 * ROWS * 10)
SHARES = [share(DATA, rank, 2) for rank in range(2)]


def trained(make: Any, steps: int = 10, passes: int = 1, scaler: Any = None, **settings: Any) -> tuple[Any, Any, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=passes)
    accelerator.scaler = scaler
    net = model(RANK)
    net, optimizer = accelerator.prepare(net, sgd(net))
    with make(accelerator, net, **settings) as local:
        for number, (x, y) in enumerate(SHARES[RANK][:steps]):
            with accelerator.accumulate(net):
                loss = F.mse_loss(net(x), y)
                if scaler is not None and skips(RANK, number):
                    loss = loss * float("inf")
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                local.step()
    return accelerator.unwrap_model(net).state_dict(), local, accelerator


def skips(rank: int, step: int) -> bool:
    return rank == 1 and step in (2, 5)


def refused(kind: Any, action: Any) -> float:
    try:
        action()
    except kind:
        return 0.0
    return 1.0


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    note: dict[str, float] = {}
    ours, local, accelerator = trained(casync.accelerate.local_sgd, local_sgd_steps=4)
    note["local SGD"] = apart(ours, train(SHARES, 4)[0])
    note["steps"] = abs(local.num_steps - 10) + abs(local.rounds.step_count - 10)
    ours, local, _ = trained(casync.accelerate.local_sgd, local_sgd_steps=2, passes=2)
    note["accumulation"] = apart(ours, train(SHARES, 2, passes=2)[0])
    note["passes are no steps"] = abs(local.rounds.step_count - 5)
    ours, _, _ = trained(casync.accelerate.diloco, sync_every=3)
    note["DiLoCo"] = apart(ours, train(SHARES, 3, (0.7, 0.9))[0])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    _, local, _ = trained(casync.accelerate.local_sgd, local_sgd_steps=4, scaler=scaler)
    note["skipped steps do not count"] = abs(local.rounds.step_count - (10 if RANK == 0 else 8))
    ours, local, _ = trained(casync.accelerate.diloco, sync_every=3, compression="always(onebit)", num_fragments=2)
    every: list[Any] = [None] * 2
    dist.all_gather_object(every, [values.tolist() for values in ours.values()])
    note["not alike"] = float(every[0] != every[1])
    _, local, _ = trained(casync.accelerate.local_sgd, local_sgd_steps=4, enabled=False)
    note["not enabled"] = abs(local.num_steps - 10)
    net = model(0)
    note["no optimizer"] = refused(InvalidArgumentError, lambda: casync.accelerate.local_sgd(accelerator, net, 2))
    sharded = type("Sharded", (), {"distributed_type": type("Kind", (), {"value": "FSDP"})})
    note["FSDP"] = refused(NotAvailableError, lambda: casync.accelerate.diloco(sharded, net))
    if RANK == 0:
        print("NOTE " + json.dumps(note), flush=True)
    hvd.shutdown()
    os._exit(0)  # as in told.py


if __name__ == "__main__":
    main()

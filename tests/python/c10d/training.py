"""One process of a job that trains: `training.py ddp|fsdp|hsdp CODEC FOLDER`. Prints its loss and what it sent.

Where DEVICE says cuda, on a GPU.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import casync.torch as hvd
import torch
import torch.distributed as dist
from casync.torch.c10d_group import group_of
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WHAT, CODEC, FOLDER = sys.argv[1:4]
OPTIONS = hvd.BackendOptions(compression=CODEC, min_numel=1000)
STEPS = 40
DEVICE = os.environ.get("DEVICE", "cpu")

logging.basicConfig(level=logging.WARNING)
torch.set_num_threads(1)
torch.manual_seed(0)
if WHAT == "hsdp":
    dist.init_process_group("gloo")
else:
    dist.init_process_group("casync", pg_options=OPTIONS)
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def sharded(model: torch.nn.Sequential) -> tuple[torch.nn.Module, Any]:
    if WHAT == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.1), dist.group.WORLD
    mesh = init_device_mesh(DEVICE, (SIZE,))
    if WHAT == "hsdp":
        names = ("replicate", "shard")
        override: Any = {"replicate": ("casync", OPTIONS)}
        mesh = init_device_mesh(DEVICE, (2, SIZE // 2), mesh_dim_names=names, backend_override=override)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, mesh.get_group("replicate") if WHAT == "hsdp" else dist.group.WORLD


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main() -> None:
    teacher = torch.nn.Linear(128, 32).to(DEVICE)
    layers = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
    model, group = sharded(layers.to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    samples = torch.Generator().manual_seed(100 + RANK)
    ours = group_of(group)
    assert ours is not None
    session, before = ours.session, 0
    for step in range(STEPS):
        x = torch.randn(32, 128, generator=samples).to(DEVICE)
        optimizer.zero_grad()
        loss = (model(x) - teacher(x)).square().mean()
        if step == STEPS - 10:
            before = session.counters()["sent_bytes"]
        loss.backward()
        optimizer.step()
    sent = (session.counters()["sent_bytes"] - before) / 10

    parameters = torch.cat([whole(parameter.detach()).reshape(-1) for parameter in model.parameters()])
    sums = [None] * SIZE
    dist.all_gather_object(sums, float(parameters.double().sum()))
    state = {"model": get_model_state_dict(model)}
    save(state, checkpoint_id=FOLDER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": get_model_state_dict(model)}
    load(state, checkpoint_id=FOLDER)
    set_model_state_dict(model, state["model"])
    again = torch.cat([whole(parameter.detach()).reshape(-1) for parameter in model.parameters()])
    note = {"loss": loss.item(), "sent": sent, "alike": len(set(sums)) == 1, "restored": torch.equal(again, parameters)}
    if RANK == 0:
        print(json.dumps(note), flush=True)
    dist.destroy_process_group()


main()

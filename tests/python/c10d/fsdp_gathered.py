"""One process of a job whose parameters FSDP2 gathers in 8 bits: `fsdp_gathered.py BACKEND MESH DTYPE RESHARD`.

Each forward sees the weights that it computes with. They are compared with those that NumPy's float64 gives from the
shards. Beside it trains the same model with exact gathers. Rank 0 prints what it found.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from casync.torch import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

BACKEND, MESH, DTYPE, RESHARD = sys.argv[1:5]
STEPS = 30

torch.set_num_threads(1)
dist.init_process_group(BACKEND)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
SHARDS = SIZE // 2 if MESH == "hsdp" else SIZE


def made(is_rounded: bool) -> tuple[torch.nn.Module, Any]:
    """Odd sizes, layers of one dimension, one that fewer ranks than there are have rows of, and a frozen one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(37, 101), torch.nn.LayerNorm(101), torch.nn.Linear(101, 53, bias=False), torch.nn.ReLU(),
        torch.nn.Linear(53, 1),
    )  # fmt: skip
    model[2].requires_grad_(False)
    mesh = init_device_mesh("cpu", (2, SHARDS), mesh_dim_names=("a", "b")) if MESH == "hsdp" else None
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, DTYPE)) if DTYPE != "float32" else MixedPrecisionPolicy()
    reshard = int(RESHARD) if RESHARD.isdigit() else RESHARD == "yes"
    fully_shard(model[0], mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, fsdp.quantize_all_gather(model) if is_rounded else None


def expected(whole: np.ndarray, shards: int) -> np.ndarray:
    """Return the values that all ranks decode. Each rank has rounded its own rows, block by block, in float64."""
    rows = -(-len(whole) // shards)
    found = np.zeros_like(whole, np.float64)
    for begin in range(0, len(whole), rows):
        flat = whole[begin : begin + rows].astype(np.float64).reshape(-1)
        for at in range(0, len(flat), 256):
            block = flat[at : at + 256]
            gap = np.abs(block).max() / 127
            flat[at : at + 256] = np.round(block / gap) * gap if gap else 0
        found[begin : begin + rows] = flat.reshape(found[begin : begin + rows].shape)
    return found


def whole_of(parameter: Any) -> torch.Tensor:
    whole: torch.Tensor = parameter.full_tensor().detach().clone()
    return whole


def sent() -> int:
    from casync.torch.c10d_group import group_of

    group = group_of(dist.group.WORLD)
    return 0 if group is None else group.session.counters()["sent_bytes"]


def main() -> None:
    models = {"exact": made(False)[0], "rounded": made(True)[0]}
    note: dict[str, Any] = {"report": [vars(made(True)[1])[key] for key in ("compressed", "exact")]}
    seen: dict[str, torch.Tensor] = {}
    for name, module in models["rounded"].named_modules():
        if list(module.parameters(recurse=False)):

            def look(module: torch.nn.Module, _: Any, name: str = name) -> None:
                for part, value in module.named_parameters(recurse=False):
                    seen[f"{name}.{part}"] = value.detach().clone()

            module.register_forward_pre_hook(look)
    note["losses"], note["bytes"], note["off"] = {}, {}, 0.0
    for kind, model in models.items():
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=3e-3)
        before, losses = sent(), []
        for step in range(STEPS):
            wholes = {}
            if kind == "rounded" and step % 10 == 0:
                wholes = {name: whole_of(p) for name, p in model.named_parameters()}
                before -= sent()
            x = torch.randn(16, 37, generator=torch.Generator().manual_seed(100 * step + RANK))
            if wholes:
                before += sent()
            loss = (model(x) - torch.sin(x.sum(1, keepdim=True))).square().mean()
            loss.backward()
            for name, whole in wholes.items():
                given = whole.to(seen[name].dtype).float().numpy()
                wanted = expected(given, SHARDS) if whole.ndim > 1 else given
                off = np.abs(seen[name].float().numpy() - wanted).max() / np.abs(wanted).max()
                note["off"] = max(note["off"], float(off))
                note[f"changed {name}"] = bool(np.any(seen[name].float().numpy() != given))
                other = seen[name].float().clone()
                dist.broadcast(other, 0)
                assert torch.equal(other, seen[name].float()), f"{name} differs between ranks"
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
        note["losses"][kind], note["bytes"][kind] = losses, sent() - before
    model = models["rounded"]
    began = {name: whole_of(p) for name, p in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, 37))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    note["kept"] = all(torch.equal(began[name], whole_of(p)) for name, p in model.named_parameters())
    if RANK == 0:
        print(json.dumps(note))
    dist.destroy_process_group()


main()

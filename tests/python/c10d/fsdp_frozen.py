"""One process of a job with frozen parameters under FSDP2: `fsdp_frozen.py REDUCE CODEC MIN_NUMEL`, where the
codec may be rules in JSON.

The loss is linear in each parameter, so gradients do not hang on what was sent before: what a parameter has moved by,
and what is pending of it, must be the sum of the ranks' mean gradients. Prints how far off that is, and the report.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from casync.torch import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

REDUCE, MIN_NUMEL = sys.argv[1], int(sys.argv[3])
CODEC: Any = json.loads(sys.argv[2]) if sys.argv[2].startswith("{") else sys.argv[2]
STEPS = 12

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("casync")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


class Adapted(torch.nn.Module):
    """A frozen layer and its adapters, as LoRA has them. Sizes that 2 does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(65, 33)
        self.down = torch.nn.Parameter(torch.zeros(65, 9))
        self.up = torch.nn.Parameter(torch.zeros(7, 65))
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x).sum() + ((x @ self.down) ** 1).sum() + (x @ self.up.T).sum()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Adapted(), Adapted()

    def forward(self, x: torch.Tensor, is_short: bool) -> torch.Tensor:
        return self.first(x) + (0 if is_short else self.second(x.flip(1)))


def change(model: Any, step: int) -> None:
    """Freeze and unfreeze: the same on all ranks."""
    if step == 4:
        model.first.base.requires_grad_(True)
    if step == 6:
        model.first.down.requires_grad_(False)
        model.second.requires_grad_(False)
    if step == 8:
        model.first.base.requires_grad_(False)
        model.first.down.requires_grad_(True)
    if step == 9:
        model.second.up.requires_grad_(True)
    if step == 10:
        model.second.down.requires_grad_(True)


def whole(parameter: Any) -> torch.Tensor:
    return parameter.full_tensor().detach().clone()


def main() -> None:
    mesh = None
    if REDUCE != "shard":
        mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("replicate", "shard"))
    model: Any = Model()
    for part in (model.first, model.second):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    how: Any = REDUCE
    compressed = fsdp.compress(model, compression=CODEC, reduce=how, min_numel=MIN_NUMEL)
    note: dict[str, Any] = {"compressed": compressed.report().compressed, "exact": compressed.report().exact}
    names = [name for name, _ in model.named_parameters()]
    began = {name: whole(parameter) for name, parameter in model.named_parameters()}
    sums = {name: torch.zeros_like(value) for name, value in began.items()}
    for step in range(STEPS):
        change(model, step)
        is_short = step == 3
        x = torch.randn(5, 65, generator=torch.Generator().manual_seed(100 * step + RANK))
        model(x, is_short).backward()
        mean = x.sum(0)
        dist.all_reduce(mean)
        mean /= SIZE
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not (is_short and name.startswith("second")):
                row = mean.flip(0) if name.startswith("second") else mean
                part = name.partition(".")[2]
                gradient = {"base.weight": row.expand(33, 65), "base.bias": torch.tensor(5.0), "up": row.expand(7, 65)}
                sums[name] += gradient.get(part, row.unsqueeze(1).expand(65, 9))
            if parameter.grad is not None:
                with torch.no_grad():
                    parameter -= parameter.grad
                parameter.grad = None
    pending = {name: value.full_tensor() for name, value in compressed.state_dict().items()}
    kinds = ("shard", "replicate") if REDUCE == "both" else (REDUCE,)
    off, waiting = 0.0, 0.0
    for name, parameter in model.named_parameters():
        moved = began[name] - whole(parameter)
        for kind in kinds:
            if f"{kind}.{name}" in pending:
                moved += pending[f"{kind}.{name}"]
                waiting = max(waiting, float(pending[f"{kind}.{name}"].abs().max()))
        if parameter.requires_grad:  # of others what is pending waits, out of sight
            off = max(off, float((moved - sums[name]).abs().max()))
    note |= {"off": off, "waiting": waiting, "pending": sorted(pending), "names": names}
    note["then"] = {"compressed": compressed.report().compressed, "exact": compressed.report().exact}
    note["sent"] = compressed._reductions[0].group.session.counters()["sent_bytes"]
    compressed.load_state_dict(compressed.state_dict())
    again = compressed.state_dict()
    note["kept"] = max(float((again[name].full_tensor() - value).abs().max()) for name, value in pending.items())
    if RANK == 0:
        print(json.dumps(note), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Programs that do more than train: checkpoints, copies, averages, evaluation, data of unequal length, groups."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from tests.python.programs.cells import right
from tests.python.programs.data import INPUTS, OUTPUTS, Rows, net


def made(door: Any, model: nn.Module | None = None, lr: float = 0.05, **of_ddp: Any) -> tuple[Any, Any]:
    model = door.model(model or net(door.seed), **of_ddp)
    return model, door.optimizer(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), model)


def step(door: Any, model: Any, optimizer: Any, batch: Any) -> torch.Tensor:
    x, y = batch
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    door.backward(loss)
    optimizer.step()
    return loss.detach()


@right("a checkpoint of rank 0, from which all ranks go on", "optimizer hook backend accelerate", codec="alike")
def resumed(door: Any) -> dict[str, Any]:
    """The reference is not interrupted."""
    model, optimizer = made(door)
    batches = door.batches(8)
    for _ in range(4):
        step(door, model, optimizer, next(batches))
    if door.name != "alone":
        path = door.job.folder / f"checkpoint-{door.name}-{door.codec}.pt"
        if door.rank == 0:
            saved = {"model": door.bare(model).state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, path)
        door.barrier()
        plain = net(17 + door.rank)
        saved = torch.load(path, weights_only=False)
        if door.rank == 0 or door.name != "optimizer":  # Horovod's scripts load on rank 0, and broadcast
            plain.load_state_dict(saved["model"])
        model = door.again(plain)
        fresh = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if door.rank == 0 or door.name != "optimizer":
            fresh.load_state_dict({key: value for key, value in saved["optimizer"].items() if key != "casync"})
        optimizer = door.optimizer(fresh, model)
    for _ in range(4):
        step(door, model, optimizer, next(batches))
    return door.weights(model)


@right("a checkpoint of rank 0, from which all ranks go on", "fsdp2", codec="alike")
def resumed_sharded(door: Any) -> dict[str, Any]:
    """torch.distributed.checkpoint, in which each rank writes its part."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = made(door)
    batches = door.batches(8)
    for _ in range(4):
        step(door, model, optimizer, next(batches))
    if door.name != "alone":
        folder = door.job.folder / f"checkpoint-{door.name}-{door.codec}"
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
        model, optimizer = made(door, net(17))
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    for _ in range(4):
        step(door, model, optimizer, next(batches))
    return door.weights(model)


@right(
    "a state that the optimizer loads in the middle of training",
    "optimizer hook backend fsdp2 local accelerate",
    codec="alike",
)
def state_loaded(door: Any) -> dict[str, Any]:
    """Back to the best epoch: parameters, momentum and learning rate; a schedule goes on with what it holds."""
    model, optimizer = made(door)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    rates = []
    best = None
    for number, batch in enumerate(door.batches(8)):
        if number == 3:
            best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if number == 6 and best is not None:
            model.load_state_dict(best[0])
            optimizer.load_state_dict(best[1])
        step(door, model, optimizer, batch)
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return {"rates": rates, **door.weights(model)}


@right("copies of a model (deepcopy, torch.save)", "optimizer hook backend local accelerate", codec="alike")
def copied_model(door: Any) -> dict[str, Any]:
    model, optimizer = made(door)
    batches = door.batches(6)
    for _ in range(3):
        step(door, model, optimizer, next(batches))
    best = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    for _ in range(3):
        step(door, model, optimizer, next(batches))
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    return door.weights(model, best, loaded)


@right("copies of an optimizer (deepcopy, pickle)", "optimizer hook backend fsdp2 local accelerate", codec="none")
def copied_optimizer(door: Any) -> dict[str, Any]:
    """A script keeps one to come back to, with the parameters that go with it."""
    model, optimizer = made(door)
    batches = door.batches(6)
    for _ in range(2):
        step(door, model, optimizer, next(batches))
    if door.name == "fsdp2":
        optimizer.zero_grad()  # torch copies no gradient that is sharded
    kept = copy.deepcopy(optimizer)
    for _ in range(2):
        step(door, model, optimizer, next(batches))
    optimizer.load_state_dict(kept.state_dict())
    for _ in range(2):
        step(door, model, optimizer, next(batches))
    return door.weights(model)


@right("moving averages of the weights (AveragedModel)", "optimizer hook backend local accelerate", codec="alike")
def averaged(door: Any) -> dict[str, Any]:
    model, optimizer = made(door)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7))
    for batch in door.batches(6):
        step(door, model, optimizer, batch)
        ema.update_parameters(model)
    return door.weights(model, ema.module)


class Checkpointed(nn.Module):
    def __init__(self, seed: int, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, OUTPUTS)
        self.block = nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, INPUTS))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        x = x + checkpoint(self.block, x, use_reentrant=self.reentrant)
        out: torch.Tensor = self.last(x)
        return out


@right("activation checkpointing", "optimizer hook backend fsdp2 local accelerate")
def activation_checkpointing(door: Any) -> dict[str, Any]:
    model, optimizer = made(door, Checkpointed(door.seed, reentrant=False))
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("reentrant activation checkpointing", "optimizer hook backend fsdp2 local accelerate")
def reentrant_checkpointing(door: Any) -> dict[str, Any]:
    model, optimizer = made(door, Checkpointed(door.seed, reentrant=True))
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right(
    "a compiled model (torch.compile, XLA, hybridize)", "optimizer hook backend fsdp2 local accelerate", codec="alike"
)
def compiled_model(door: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    model, optimizer = made(door)
    run = torch.compile(model, backend="aot_eager")
    for batch in door.batches(5):
        step(door, run, optimizer, batch)
    return door.weights(model)


@right(
    "a compiled step of the optimizer (torch.compile)", "optimizer hook backend fsdp2 local accelerate", codec="alike"
)
def compiled_step(door: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    model, optimizer = made(door)

    @torch.compile(backend="aot_eager")
    def run() -> None:
        optimizer.step()

    for x, y in door.batches(5):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        run()
    return door.weights(model)


@right("a last batch that is shorter on some ranks", "optimizer hook backend fsdp2 local accelerate", beside="gloo")
def short_last_batch(door: Any) -> dict[str, Any]:
    model, optimizer = made(door, net(0))
    for number, (x, y) in enumerate(door.batches(5)):
        rows = 3 if number == 4 and door.rank == 1 else len(x)
        step(door, model, optimizer, (x[:rows], y[:rows]))
    return door.weights(model)


@right("ranks with different numbers of batches (join)", "optimizer hook backend", beside="gloo", codec="alike")
def joined(door: Any) -> dict[str, Any]:
    """Twice, and more steps than lie between two of an optimizer's comparisons of replicas."""
    model, optimizer = made(door, lr=0.01)
    for epoch, counts in enumerate(((60, 53), (52, 55))):
        with door.uneven(model):
            for number, batch in enumerate(door.batches(60, seed=epoch)):
                if number < counts[door.rank]:
                    step(door, model, optimizer, batch)
    return door.weights(model)


class Normed(nn.Module):
    def __init__(self, seed: int, norm: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(INPUTS, 8), norm(8), nn.ReLU(), nn.Linear(8, OUTPUTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


@right("batch normalisation", "optimizer hook backend fsdp2 accelerate", beside="gloo", codec="none")
def batch_norm(door: Any) -> dict[str, Any]:
    """Under DDP each forward begins with rank 0's running means; without DDP each rank has its own."""
    more = {"broadcast_buffers": False} if door.of == "optimizer" else {}
    model, optimizer = made(door, Normed(0, nn.BatchNorm1d), **more)
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return {name if "running" not in name else f"own.{name}": value for name, value in door.weights(model).items()}


@right("synchronised batch normalisation", "optimizer hook local")
def sync_batch_norm(door: Any) -> dict[str, Any]:
    norm = nn.BatchNorm1d if door.name == "alone" else door.hvd.SyncBatchNorm
    model, optimizer = made(door, Normed(door.seed, norm))
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right(
    "dropout, with a seed for each rank", "optimizer hook backend fsdp2 local accelerate", beside="gloo", codec="alike"
)
def dropout(door: Any) -> dict[str, Any]:
    layers = net(0)
    model, optimizer = made(door, nn.Sequential(layers[0], layers[1], nn.Dropout(0.3), layers[2]))
    torch.manual_seed(100 + door.rank)
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("evaluation on rank 0 only", "optimizer hook backend local accelerate")
def evaluated_on_one(door: Any) -> dict[str, Any]:
    model, optimizer = made(door, Normed(0, nn.LayerNorm))
    for number, batch in enumerate(door.batches(6)):
        if number % 2 == 0 and door.rank == 0:
            plain = door.bare(model)
            plain.eval()
            with torch.no_grad():
                for _ in range(3):
                    F.mse_loss(plain(batch[0]), batch[1])
            plain.train()
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("sums and means of metrics between steps", "optimizer hook backend fsdp2 local accelerate", codec="exact")
def metrics(door: Any) -> dict[str, Any]:
    """They are no gradients, so a codec does not touch them."""
    model, optimizer = made(door)
    found = []
    for number, batch in enumerate(door.batches(5)):
        step(door, model, optimizer, batch)
        counts = torch.arange(3000.0).view(60, 50) * (number + 1)
        every = [counts * (rank + 1) for rank in range(door.size) if door.has(rank)]
        found.append(door.mean(sum(every) / len(every)))
    return {"counts": torch.stack(found)}


@right("weights that are averaged now and then (local SGD)", "optimizer backend", codec="exact")
def local_sgd(door: Any) -> dict[str, Any]:
    models = [net(0) for rank in range(door.size) if door.has(rank)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for number, (x, y) in enumerate(door.batches(6)):
        for model, optimizer, rows, wanted in zip(
            models, optimizers, x.chunk(len(models)), y.chunk(len(models)), strict=True
        ):
            optimizer.zero_grad()
            F.mse_loss(model(rows), wanted).backward()
            optimizer.step()
        if number % 2:
            for every in zip(*(model.parameters() for model in models), strict=True):
                mean = door.mean(torch.stack([one.detach() for one in every]).mean(0))
                for parameter in every:
                    parameter.data.copy_(mean)
    return dict(models[0].state_dict())


@right("weights that are averaged now and then (local SGD)", "accelerate", codec="exact")
def local_sgd_of_accelerate(door: Any) -> dict[str, Any]:
    """Accelerate's LocalSGD; the reference has a model for each rank."""
    if door.name == "alone":
        return local_sgd(door)
    from accelerate.local_sgd import LocalSGD

    model = door.model(net(0))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    with LocalSGD(door.accelerator, model, local_sgd_steps=2, enabled=True) as local:
        for batch in door.batches(6):
            step(door, model, optimizer, batch)
            local.step()
    return dict(door.bare(model).state_dict())


@right("gradients of gradients (a penalty on them)", "optimizer hook backend local accelerate")
def gradient_penalty(door: Any) -> dict[str, Any]:
    model, optimizer = made(door, lr=0.02)
    for x, y in door.batches(5):
        x.requires_grad_(True)
        optimizer.zero_grad()
        said = model(x)
        (slope,) = torch.autograd.grad(said.sum(), x, create_graph=True)
        door.backward(F.mse_loss(said, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean())
        optimizer.step()
    return door.weights(model)


@right("a script's own hooks on gradients", "optimizer hook backend local accelerate", codec="alike")
def own_hooks(door: Any) -> dict[str, Any]:
    """The first layer learns at half the rate, and some of its rows do not at all."""
    model = net(door.seed)
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    model[0].bias.register_hook(lambda gradient: torch.cat([torch.zeros(4), gradient[4:]]))
    model, optimizer = made(door, model)
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("a batch that fails in forward and is left out", "optimizer hook backend fsdp2 local accelerate", codec="alike")
def failed_forward(door: Any) -> dict[str, Any]:
    """On all ranks; as where memory runs out."""
    model, optimizer = made(door)
    for number, (x, y) in enumerate(door.batches(6)):
        optimizer.zero_grad()
        try:
            said = model(x[:, :-1] if number == 2 else x)
        except RuntimeError:
            continue
        door.backward(F.mse_loss(said, y))
        optimizer.step()
    return door.weights(model)


@right("the session ends and begins again", "optimizer hook backend fsdp2 local accelerate", codec="alike")
def begun_again(door: Any) -> dict[str, Any]:
    found = {}
    for life in range(3):
        model, optimizer = made(door)
        for batch in door.batches(3, seed=life):
            step(door, model, optimizer, batch)
        found |= {f"{life}.{name}": value for name, value in door.weights(model).items()}
        door.anew()
    return found


def workers(door: Any, how: str) -> dict[str, Any]:
    model, optimizer = made(door)
    more: dict[str, Any] = {} if door.name == "alone" else {"num_workers": 1, "multiprocessing_context": how}
    rows = Rows(door.rank, door.size, 4, everybodys=door.name == "alone")
    for epoch in range(2):
        for batch in DataLoader(rows, batch_size=None, persistent_workers=False, **more):
            if epoch == 1 or how == "fork":
                step(door, model, optimizer, batch)
        if how == "spawn":
            more = {}  # starting one is slow
    return door.weights(model)


@right("workers of a DataLoader, by fork", "optimizer hook backend fsdp2 local accelerate", codec="none")
def forked_workers(door: Any) -> dict[str, Any]:
    return workers(door, "fork")


@right("workers of a DataLoader, by spawn", "optimizer hook backend fsdp2 local accelerate", codec="none")
def spawned_workers(door: Any) -> dict[str, Any]:
    return workers(door, "spawn")


@right("ZeroRedundancyOptimizer", "hook backend accelerate", codec="alike")
def zero_redundancy(door: Any) -> dict[str, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = door.model(net(door.seed))
    if door.name == "alone":
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    else:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return door.weights(model)


@right("groups of ranks, each with a model of its own", "optimizer hook backend fsdp2 local", ranks=4, codec="none")
def groups(door: Any) -> dict[str, Any]:
    pair = door.split()
    model, optimizer = made(door, net(pair))
    for batch in door.batches(5, seed=10 + pair):
        step(door, model, optimizer, batch)
    return {f"own.{name}": value for name, value in door.weights(model).items()}

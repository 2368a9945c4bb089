"""Programs that are written in another way for local SGD.

Some end its `with` in the middle. Others make steps that are not linear in the gradients, so that the mean of what the
ranks' steps change is not what a step with the mean gradient changes: there the reference makes each rank's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.python.programs.cells import refused, right
from tests.python.programs.data import OUTPUTS, Batch, net, share
from tests.python.programs.door import start_group
from tests.python.programs.loops import hooked_steps
from tests.python.programs.training import Normed, local_sgd, made, step

Said = dict[str, Any]
Training = Callable[[Any, int, Sequence[Batch]], Iterator[nn.Module]]


def trained(door: Any, train: Training, steps: int = 6) -> Said:
    """The weights after `train(door, rank, batches)`, which yields a model whenever it has made a step. The reference
    trains for all ranks, and gives all of them the mean of those that have made a step.
    """
    ranks = [rank for rank in range(door.size) if door.has(rank)]
    batches = [*door.batches(steps)]
    running = {
        rank: train(door, rank, [share(batch, place, len(ranks)) for batch in batches])
        for place, rank in enumerate(ranks)
    }
    models: dict[int, list[nn.Module]] = {rank: [] for rank in ranks}
    while stepped := {rank: model for rank, one in running.items() if (model := next(one, None)) is not None}:
        for rank, model in stepped.items():
            if model not in models[rank]:
                models[rank].append(model)
        if door.name == "alone":
            rank, model = next(iter(stepped.items()))
            place = models[rank].index(model)
            average([*stepped.values()], [of_rank[place] for of_rank in models.values()])
    weights: Said = door.weights(*models[door.rank])
    return weights


@torch.no_grad()
def average(stepped: Sequence[nn.Module], every: Sequence[nn.Module]) -> None:
    means = [torch.stack(each).mean(0) for each in zip(*(model.parameters() for model in stepped), strict=True)]
    for model in every:
        for parameter, mean in zip(model.parameters(), means, strict=True):
            parameter.copy_(mean)


@right("optimizers of many kinds", "local", codec="alike")
def many_kinds(door: Any) -> Said:
    kinds: dict[str, Any] = {
        "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True, foreach=True),
        "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.005, momentum=0.5, centered=True),
        "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05),
        "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True),
        "fused": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.01), fused=True),
    }
    found = {}
    for name, make in kinds.items():

        def train(door: Any, rank: int, batches: Sequence[Batch], make: Any = make) -> Iterator[nn.Module]:
            model = door.model(net(door.seed))
            groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters()}]
            optimizer = door.optimizer(make(groups), model)
            for batch in batches:
                step(door, model, optimizer, batch)
                yield model

        found |= {f"{name}.{key}": value for key, value in trained(door, train, 4).items()}
    return found


@right("two optimizers that step after one backward", "local", codec="alike")
def two_optimizers(door: Any) -> Said:
    """The last one to step ends a step."""

    def train(door: Any, rank: int, batches: Sequence[Batch]) -> Iterator[nn.Module]:
        model = door.model(net(door.seed))
        first = torch.optim.SGD(model[0].parameters(), lr=0.02)
        last = torch.optim.AdamW(model[2].parameters(), lr=0.02)
        door.optimizer([first, last], model)
        for x, y in batches:
            model.zero_grad()
            door.backward(F.mse_loss(model(x), y))
            first.step()
            last.step()
            yield model

    return trained(door, train)


@right("two models whose optimizers take turns (a GAN)", "local", codec="alike")
def generator_and_critic(door: Any) -> Said:
    def train(door: Any, rank: int, batches: Sequence[Batch]) -> Iterator[nn.Module]:
        torch.manual_seed(door.seed)
        critic = door.model(nn.Sequential(nn.Linear(OUTPUTS, 12), nn.Tanh(), nn.Linear(12, 1)))
        of_critic = door.optimizer(torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.9)), critic)
        generator = door.model(net(door.seed))
        of_generator = door.optimizer(torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9)), generator)
        for noise, real in batches:
            of_critic.zero_grad()
            fake = generator(noise)
            said = critic(torch.cat([real, fake.detach()])).squeeze(1)
            truth = torch.cat([torch.ones(len(real)), torch.zeros(len(real))])
            door.backward(F.binary_cross_entropy_with_logits(said, truth))
            of_critic.step()
            yield critic

            of_generator.zero_grad()
            critic.requires_grad_(False)
            said = critic(fake).squeeze(1)
            door.backward(F.binary_cross_entropy_with_logits(said, torch.ones(len(real))))
            of_generator.step()
            critic.requires_grad_(True)
            yield generator

    return trained(door, train)


@right("hooks of an optimizer's step", "local", codec="alike")
def step_hooks(door: Any) -> Said:
    """One before the step halves the gradients; one after it, that was registered in the `with`, sees the mean."""

    def halve(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)

    return hooked_steps(door, halve)


@right("LBFGS, and other optimizers that call a closure", "local", codec="alike")
def closures(door: Any) -> Said:
    """A step is one call of the optimizer's, however often it calls the closure."""

    def train(door: Any, rank: int, batches: Sequence[Batch]) -> Iterator[nn.Module]:
        model = door.model(net(door.seed))
        optimizer = door.optimizer(torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4), model)
        for x, y in batches:

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                door.backward(loss)
                return loss

            optimizer.step(closure)
            yield model

    return trained(door, train, 3)


@refused(
    "ZeroRedundancyOptimizer",
    "local",
    error="InvalidArgumentError",
    says="a ZeroRedundancyOptimizer gives all ranks the same parameters in every step",
    why="ZeroRedundancyOptimizer gives all ranks the same parameters in every step, and leaves nothing to average",
)
def zero_redundancy(door: Any) -> Said:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    start_group(door.job, "gloo")
    try:
        model = door.model(net(door.seed))
        door.optimizer(ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01), model)
    finally:
        torch.distributed.destroy_process_group()
    return {}


@right("parameters that join the optimizer later (add_param_group)", "local", codec="alike")
def added_later(door: Any) -> Said:
    """Parameters that no optimizer has are frozen. When they join, another LocalSGD begins."""
    model = door.model(net(door.seed))
    model[0].requires_grad_(False)
    optimizer = door.optimizer(torch.optim.SGD(model[2].parameters(), lr=0.05, momentum=0.9), model)
    for number, batch in enumerate(door.batches(8)):
        if number == 4:
            door.end()
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
            model = door.again(model)
        step(door, model, optimizer, batch)
    return dict(door.weights(model))


@right("clipping of gradients, by norm and by value", "local", codec="alike")
def clipping(door: Any) -> Said:
    """Each rank clips its own."""
    norms: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def train(door: Any, rank: int, batches: Sequence[Batch]) -> Iterator[nn.Module]:
        model, optimizer = made(door, lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            door.backward(F.mse_loss(model(x), y))
            norms[rank].append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            yield model

    weights = trained(door, train)
    return {"own.norms": torch.stack(norms[door.rank]), **weights}


@right("a GradScaler, with steps that are skipped", "local", codec="alike")
def scaler_that_skips(door: Any) -> Said:
    """A step that a rank skips does not count, so that it makes fewer, and leaves the `with` before the others."""
    scales: dict[int, list[float]] = {0: [], 1: []}

    def train(door: Any, rank: int, batches: Sequence[Batch]) -> Iterator[nn.Module]:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
        model, optimizer = made(door)
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            is_broken = number in (2, 6) and rank == 1
            door.backward(scaler.scale(loss * float("inf") if is_broken else loss))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
            scales[rank].append(scaler.get_scale())
            if not is_broken:
                yield model

    weights = trained(door, train, 9)
    return {"own.scales": scales[door.rank], **weights}


@right("batch normalisation", "local", beside="gloo", codec="none")
def batch_norm(door: Any) -> Said:
    """The running means become those of all ranks, which DDP's ranks keep for themselves if it does not broadcast."""
    model, optimizer = made(door, Normed(0, nn.BatchNorm1d), broadcast_buffers=False)
    for batch in door.batches(5):
        step(door, model, optimizer, batch)
    return {name: door.mean(value) if "running" in name else value for name, value in door.weights(model).items()}


@right("a checkpoint of rank 0, from which all ranks go on", "local", codec="alike")
def resumed(door: Any) -> Said:
    """Without momentum, which is each rank's own. The reference is not interrupted."""

    def begun(seed: int) -> tuple[Any, Any]:
        model = door.model(net(seed))
        return model, door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)

    model, optimizer = begun(door.seed)
    batches = door.batches(8)
    for _ in range(4):
        step(door, model, optimizer, next(batches))
    if door.name != "alone":
        path = door.job.folder / "checkpoint-local.pt"
        if door.rank == 0:
            torch.save({"local": door.local.state_dict(), "optimizer": optimizer.state_dict()}, path)
        door.end()
        door.barrier()
        saved = torch.load(path, weights_only=False)
        model, optimizer = begun(17 + door.rank)
        optimizer.load_state_dict(saved["optimizer"])
        door.local.load_state_dict(saved["local"])
    for _ in range(4):
        step(door, model, optimizer, next(batches))
    return dict(door.weights(model))


@right("ranks with different numbers of batches (join)", "local", codec="alike")
def uneven(door: Any) -> Said:
    """A rank without batches left leaves the `with`, and has weight 0 in the others' rounds."""

    def train(door: Any, rank: int, batches: Sequence[Batch]) -> Iterator[nn.Module]:
        model, optimizer = made(door, lr=0.01)
        for batch in batches[: (60, 53)[rank]]:
            step(door, model, optimizer, batch)
            yield model

    return trained(door, train, 60)


@right("weights that are averaged now and then (local SGD)", "local", codec="alike")
def every_two_steps(door: Any) -> Said:
    """The reference has a model for each rank."""
    if door.name == "alone":
        return local_sgd(door)
    model = door.model(net(0))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model, every=2)
    for batch in door.batches(6):
        step(door, model, optimizer, batch)
    door.end()
    return dict(model.state_dict())

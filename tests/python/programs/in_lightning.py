"""Programs of Lightning: a LightningModule, a Trainer, and what the Trainer can do."""

from __future__ import annotations

import copy
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks
from torch import nn
from torch.nn import functional as F

from tests.python.programs.cells import right
from tests.python.programs.data import INPUTS, OUTPUTS, Rows, net
from tests.python.programs.doors_lightning import Module
from tests.python.programs.ends import broken, die
from tests.python.programs.training import Checkpointed, Normed


@right("a learning-rate schedule made before the wrap", "lightning")
def schedule_before(door: Any) -> dict[str, Any]:
    """Both were made before there was a Trainer."""
    model = net(door.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    halves = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    plan = {"optimizer": optimizer, "lr_scheduler": {"scheduler": halves, "interval": "step"}}
    return {**door.fit(Module(model, lambda _: plan)), "rate": optimizer.param_groups[0]["lr"]}


@right("a learning-rate schedule made after the wrap", "lightning")
def schedule(door: Any) -> dict[str, Any]:
    def optimizers(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": one_cycle, "interval": "step"}}

    return door.fit(Module(net(door.rank), optimizers))


class TwoOptimizers(Module):
    """Manual optimization, of both layers after one backward."""

    def __init__(self, seed: int) -> None:
        super().__init__(net(seed))
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        first, _, last = self.model
        return torch.optim.SGD(first.parameters(), 0.05), torch.optim.AdamW(last.parameters(), 0.02)

    def training_step(self, batch: Any, number: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(F.mse_loss(self(batch[0]), batch[1]))
        for optimizer in optimizers:
            optimizer.step()


@right("two optimizers that step after one backward", "lightning")
def two_optimizers(door: Any) -> dict[str, Any]:
    return door.fit(TwoOptimizers(door.rank))


class Gan(pl.LightningModule):
    """As in Lightning's examples: one module, two optimizers, each toggled for its turn."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = net(seed)
        self.critic = nn.Sequential(nn.Linear(OUTPUTS, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.generator(noise)
        return out

    def training_step(self, batch: Any, number: int) -> None:
        noise, real = batch
        of_generator, of_critic = self.optimizers()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.toggle_optimizer(of_generator)
        self.manual_backward(F.binary_cross_entropy_with_logits(self.critic(self(noise)), ones))
        of_generator.step()
        of_generator.zero_grad()
        self.untoggle_optimizer(of_generator)
        self.toggle_optimizer(of_critic)
        loss = F.binary_cross_entropy_with_logits(self.critic(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(self.critic(self(noise).detach()), zeros)
        self.manual_backward(loss)
        of_critic.step()
        of_critic.zero_grad()
        self.untoggle_optimizer(of_critic)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), 0.01) for part in (self.generator, self.critic)]


@right("two models whose optimizers take turns (a GAN)", "lightning")
def gan(door: Any) -> dict[str, Any]:
    return door.fit(Gan(door.rank), of_ddp={"find_unused_parameters": True})


@right("two models and one optimizer", "lightning")
def two_models(door: Any) -> dict[str, Any]:
    return door.fit(Module(nn.Sequential(nn.Sequential(*net(door.rank)[:2]), nn.Sequential(net(door.rank)[2]))))


@right("optimizers of many kinds", "lightning")
def many_kinds(door: Any) -> dict[str, Any]:
    found = {}
    for kind in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
        result = door.fit(Module(net(door.rank), lambda model, kind=kind: kind(model.parameters(), lr=0.01)), steps=3)
        found |= {f"{kind.__name__}.{name}": value for name, value in result.items()}
    return found


@right("gradient accumulation", "lightning")
def accumulation(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), steps=8, accumulate_grad_batches=2)


@right("gradient accumulation over numbers of batches that vary", "lightning")
def accumulation_that_varies(door: Any) -> dict[str, Any]:
    """Also within an epoch, whose last step has what is left."""
    plan = callbacks.GradientAccumulationScheduler(scheduling={0: 1, 1: 3, 2: 2})
    return door.fit(Module(net(door.rank)), steps=5, max_epochs=3, callbacks=[plan])


@right("clipping of gradients, by norm and by value", "lightning")
def clipping(door: Any) -> dict[str, Any]:
    by_norm = door.fit(Module(net(door.rank)), gradient_clip_val=0.3)
    by_value = door.fit(Module(net(door.rank)), gradient_clip_val=0.05, gradient_clip_algorithm="value")
    return by_norm | {f"by value.{name}": value for name, value in by_value.items()}


@right("autocast to bfloat16", "lightning")
def autocast(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), precision="bf16-mixed")


class Watcher(callbacks.Callback):
    """Clips before the step, and keeps an average after it."""

    def __init__(self) -> None:
        self.calls = 0
        self.average: list[torch.Tensor] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.calls += 1
        nn.utils.clip_grad_value_(pl_module.parameters(), 0.1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        now = [parameter.detach() for parameter in pl_module.parameters()]
        self.average = [old.lerp(new, 0.5) for old, new in zip(self.average or now, now, strict=True)]


@right("hooks of an optimizer's step", "lightning")
def step_hooks(door: Any) -> dict[str, Any]:
    watcher = Watcher()
    found = door.fit(Module(net(door.rank)), callbacks=[watcher])
    return {"calls": watcher.calls, **{f"average{n}": one for n, one in enumerate(watcher.average)}, **found}


@right("LBFGS, and other optimizers that call a closure", "lightning")
def closures(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank), lambda model: torch.optim.LBFGS(model.parameters(), 0.05, 1)), steps=3)


@right("a checkpoint of rank 0, from which all ranks go on", "lightning")
def resumed(door: Any) -> dict[str, Any]:
    """`fit(ckpt_path=...)` in new objects."""
    place = door.job.folder / f"lightning-{door.name}-{door.codec}"
    saves = callbacks.ModelCheckpoint(place, filename="last")
    door.trainer(max_epochs=1, callbacks=[saves], enable_checkpointing=True).fit(Module(net(door.rank)), door.data(4))
    module = Module(net(17 + door.rank))
    door.trainer(max_epochs=2).fit(module, door.data(4), ckpt_path=str(place / "last.ckpt"), weights_only=False)
    return door.weights(module)


class Copies(callbacks.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.best = copy.deepcopy(pl_module.model)
            self.whole = copy.deepcopy(trainer.strategy.model)  # in DDP


@right("copies of a model (deepcopy, torch.save)", "lightning")
def copied(door: Any) -> dict[str, Any]:
    copies = Copies()
    found = door.fit(Module(net(door.rank)), callbacks=[copies])
    found |= {f"best.{name}": value for name, value in copies.best.state_dict().items()}
    return found | {f"whole.{name}": value for name, value in copies.whole.state_dict().items()}


@right("moving averages of the weights (AveragedModel)", "lightning")
def averaged(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), callbacks=[callbacks.EMAWeightAveraging(decay=0.7)])


@right("activation checkpointing", "lightning")
def activation_checkpointing(door: Any) -> dict[str, Any]:
    return door.fit(Module(Checkpointed(door.rank, reentrant=False)))


@right("reentrant activation checkpointing", "lightning")
def reentrant_checkpointing(door: Any) -> dict[str, Any]:
    return door.fit(Module(Checkpointed(door.rank, reentrant=True)))


@right("a compiled model (torch.compile, XLA, hybridize)", "lightning")
def compiled(door: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    return door.fit(Module(torch.compile(net(door.rank), backend="aot_eager")), steps=3)


@right("a last batch that is shorter on some ranks", "lightning")
def short_last_batch(door: Any) -> dict[str, Any]:
    """With a sampler of the script's own."""
    rows = Rows(door.rank, door.size, 4, everybodys=False)
    batches = [rows[number] for number in range(4)]
    if door.rank == 1:
        batches[-1] = tuple(column[:3] for column in batches[-1])
    module = Module(net(door.rank))
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    door.trainer(use_distributed_sampler=False).fit(module, loader)
    return door.weights(module)


class Seeds(callbacks.Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        torch.manual_seed(100 + trainer.global_rank)


@right("dropout, with a seed for each rank", "lightning")
def dropout(door: Any) -> dict[str, Any]:
    layers = net(door.rank)
    model = nn.Sequential(layers[0], layers[1], nn.Dropout(0.3), layers[2])
    return door.fit(Module(model), callbacks=[Seeds()])


class Evaluates(callbacks.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.is_global_zero:
            pl_module.eval()
            with torch.no_grad():
                pl_module(torch.ones(3, INPUTS))
            pl_module.train()


@right("evaluation on rank 0 only", "lightning")
def evaluated_on_one(door: Any) -> dict[str, Any]:
    return door.fit(Module(Normed(door.rank, nn.LayerNorm)), callbacks=[Evaluates()])


class Logs(Module):
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.log("counts", torch.tensor(1000.0 * (number + 1) * (self.global_rank + 1)), sync_dist=True)
        return super().training_step(batch, number)


class Reads(callbacks.Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.seen.append(float(trainer.callback_metrics["counts"]))


@right("sums and means of metrics between steps", "lightning", codec="exact")
def metrics(door: Any) -> dict[str, Any]:
    reads = Reads()
    door.fit(Logs(net(door.rank)), callbacks=[reads])
    return {"counts": reads.seen}


class Penalised(Module):
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        x = batch[0].requires_grad_(True)
        said = self(x)
        (slope,) = torch.autograd.grad(said.sum(), x, create_graph=True)
        return F.mse_loss(said, batch[1]) + 0.1 * (slope.norm(dim=1) - 1).square().mean()


@right("gradients of gradients (a penalty on them)", "lightning")
def gradient_penalty(door: Any) -> dict[str, Any]:
    return door.fit(Penalised(net(door.rank), lambda model: torch.optim.SGD(model.parameters(), lr=0.02)))


@right("a script's own hooks on gradients", "lightning")
def own_hooks(door: Any) -> dict[str, Any]:
    model = net(door.rank)
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return door.fit(Module(model))


@right("the session ends and begins again", "lightning")
def begun_again(door: Any) -> dict[str, Any]:
    """Several fits in one script, of one Trainer and of others."""
    module = Module(net(door.rank))
    trainer = door.trainer(max_epochs=1)
    trainer.fit(module, door.data(3))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, door.data(3))
    door.trainer().fit(module, door.data(3))
    return door.weights(module)


def with_workers(door: Any, how: str) -> dict[str, Any]:
    module = Module(net(door.rank))
    loader = door.data(4, num_workers=1, multiprocessing_context=how) if door.name != "gloo" else door.data(4)
    door.trainer().fit(module, loader)
    return door.weights(module)


@right("workers of a DataLoader, by fork", "lightning", codec="none")
def forked_workers(door: Any) -> dict[str, Any]:
    return with_workers(door, "fork")


@right("workers of a DataLoader, by spawn", "lightning", codec="none")
def spawned_workers(door: Any) -> dict[str, Any]:
    return with_workers(door, "spawn")


@right("ZeroRedundancyOptimizer", "lightning")
def zero_redundancy(door: Any) -> dict[str, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return door.fit(
        Module(net(door.rank), lambda model: ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))
    )


@right("gradients that stay in place (zero_grad(set_to_none=False))", "lightning")
def gradients_in_place(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), of_ddp={"gradient_as_bucket_view": True})


class Fails(callbacks.Callback):
    def __init__(self, fail: Any) -> None:
        self.fail = fail

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3 and trainer.global_rank == 1:
            self.fail()


@right(
    "an exception on one rank", "lightning", apart=True, ends=(1, 1), says="rank 1: ValueError: the labels of rank 1"
)
def exception(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), callbacks=[Fails(broken)])


@right("a rank that is killed", "lightning", apart=True, ends=(1, -9), says="PeerFailureError.*rank 1")
def killed(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), callbacks=[Fails(die)])


class StepsTwice(TwoOptimizers):
    def training_step(self, batch: Any, number: int) -> None:
        super().training_step(batch, number)
        for optimizer in self.optimizers():
            optimizer.step()


@right("several steps with one gradient, and steps without a backward", "lightning")
def steps_without_backward(door: Any) -> dict[str, Any]:
    return door.fit(StepsTwice(door.rank))


class GoesBack(callbacks.Callback):
    """To the best epoch, and to a copy of its optimizer."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        (optimizer,) = trainer.optimizers
        if batch_idx == 2:
            self.kept = copy.deepcopy(optimizer)
            self.best = copy.deepcopy((pl_module.state_dict(), optimizer.state_dict()))
        if batch_idx == 4:
            pl_module.load_state_dict(self.best[0])
            optimizer.load_state_dict(self.best[1])
        if batch_idx == 5:
            optimizer.load_state_dict(self.kept.state_dict())


@right("a state that the optimizer loads in the middle of training", "lightning")
def state_loaded(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), callbacks=[GoesBack()])


@right("copies of an optimizer (deepcopy, pickle)", "lightning", codec="none")
def copied_optimizer(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), callbacks=[GoesBack()], steps=8)

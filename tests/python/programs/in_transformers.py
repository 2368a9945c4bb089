"""Programs of Transformers' Trainer: its arguments, its callbacks, and models of many kinds."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import TrainerCallback

from tests.python.programs.cells import right
from tests.python.programs.data import INPUTS, OUTPUTS, net
from tests.python.programs.doors_transformers import Model
from tests.python.programs.ends import broken, die
from tests.python.programs.models import Adapter, Experts, Mixed, Odd, Reader, Waves, Words
from tests.python.programs.training import Checkpointed, Normed


@right("a learning-rate schedule made before the wrap", "transformers")
def schedule_before(door: Any) -> dict[str, Any]:
    """`optimizers=(optimizer, schedule)`, which a script makes beforehand."""
    model = Model(net(door.rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    trainer = door.trainer(model, optimizer=optimizer)
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    trainer.train()
    return door.weights(trainer)


@right("a learning-rate schedule made after the wrap", "transformers")
def schedule(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), lr_scheduler_type="cosine", warmup_steps=2, steps=8)


@right("optimizers of many kinds", "transformers")
def many_kinds(door: Any) -> dict[str, Any]:
    found = {}
    for kind in ("adamw_torch", "adafactor", "rmsprop"):
        result = door.train(net(door.rank), optim=kind, learning_rate=0.01, weight_decay=0.01, steps=3)
        found |= {f"{kind}.{name}": value for name, value in result.items()}
    return found


@right("gradient accumulation", "transformers")
def accumulation(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), gradient_accumulation_steps=2, steps=8)


@right("gradient accumulation over numbers of batches that vary", "transformers")
def accumulation_that_varies(door: Any) -> dict[str, Any]:
    """The last step of each epoch has what is left."""
    return door.train(net(door.rank), gradient_accumulation_steps=3, steps=5, num_train_epochs=2)


@right("clipping of gradients, by norm and by value", "transformers")
def clipping(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), max_grad_norm=0.3)


@right("autocast to bfloat16", "transformers")
def autocast(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), bf16=True)


class Watcher(TrainerCallback):
    """Clips before the step, keeps an average after it, and copies the model."""

    def __init__(self) -> None:
        self.calls = 0
        self.average: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.calls += 1
        nn.utils.clip_grad_value_(model.parameters(), 0.1)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        now = [parameter.detach().clone() for parameter in model.parameters()]
        self.average = [old.lerp(new, 0.5) for old, new in zip(self.average or now, now, strict=True)]
        if state.global_step == 2:
            self.best = copy.deepcopy(model)


@right("hooks of an optimizer's step", "transformers")
def step_hooks(door: Any) -> dict[str, Any]:
    watcher = Watcher()
    found = door.train(net(door.rank), callbacks=[watcher])
    return {"calls": watcher.calls, **{f"average{n}": one for n, one in enumerate(watcher.average)}, **found}


@right("copies of a model (deepcopy, torch.save)", "transformers")
def copied(door: Any) -> dict[str, Any]:
    watcher = Watcher()
    found = door.train(net(door.rank), callbacks=[watcher])
    return found | {f"best.{name}": value for name, value in watcher.best.state_dict().items()}


class Averages(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.7)
        self.ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.ema.update_parameters(model)


@right("moving averages of the weights (AveragedModel)", "transformers")
def averaged(door: Any) -> dict[str, Any]:
    averages = Averages()
    found = door.train(net(door.rank), callbacks=[averages])
    return found | {f"average.{name}": value for name, value in averages.ema.module.state_dict().items()}


class Freezes(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 2:
            model.model[0].requires_grad_(False)


@right("parameters that are frozen later", "transformers")
def frozen_later(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), callbacks=[Freezes()], ddp_find_unused_parameters=True)


class OfExperts(nn.Module):
    """Which expert is used depends on the rows, which ranks do not share."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        self.experts, self.rank, self.calls = Experts(seed), rank, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.experts(x, (self.calls + self.rank) % 2)
        return out


@right("parameters that some ranks do not use", "transformers")
def unused_by_some(door: Any) -> dict[str, Any]:
    return door.train(OfExperts(door.rank, door.rank), ddp_find_unused_parameters=True)


class OfWords(nn.Module):
    def __init__(self, words: Words) -> None:
        super().__init__()
        self.words = words

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        words = (x[:, :9].abs() * 7).long() % 20
        said = self.words(words[:, :-1])
        return {"loss": F.cross_entropy(said.reshape(-1, 20), words[:, 1:].reshape(-1)), "logits": said}


@right("weights that are tied", "transformers")
def tied(door: Any) -> dict[str, Any]:
    trainer = door.trainer(OfWords(Words(door.rank, tied=True)))
    trainer.train()
    return door.weights(trainer)


@right("parameters without elements or dimensions, or not contiguous", "transformers")
def odd(door: Any) -> dict[str, Any]:
    return door.train(Odd(door.rank), learning_rate=0.02)


@right("convolutions in channels_last", "transformers")
def channels_last(door: Any) -> dict[str, Any]:
    torch.manual_seed(door.rank)
    shape = nn.Unflatten(1, (4, 2, 2))
    layers = nn.Sequential(shape, nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, OUTPUTS))
    return door.train(layers.to(memory_format=torch.channels_last))


@right("complex parameters", "transformers")
def complex_parameters(door: Any) -> dict[str, Any]:
    found = door.train(Waves(door.rank))
    return {name: torch.view_as_real(value) if value.is_complex() else value for name, value in found.items()}


@right("parameters of several dtypes", "transformers")
def several_dtypes(door: Any) -> dict[str, Any]:
    return door.train(Mixed(door.rank), learning_rate=0.02, steps=2)


class Wide(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers = net(seed).double()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        said = self.layers(x.double())
        return {"loss": F.mse_loss(said, labels.double()), "logits": said}


@right("training in float64", "transformers")
def float64(door: Any) -> dict[str, Any]:
    trainer = door.trainer(Wide(door.rank))
    trainer.train()
    return door.weights(trainer)


@right("adapters beside frozen weights (LoRA)", "transformers")
def adapters(door: Any) -> dict[str, Any]:
    layers = net(door.rank)
    return door.train(nn.Sequential(Adapter(layers[0]), layers[1], Adapter(layers[2])), learning_rate=0.1)


@right("weights that are computed (weight_norm, parametrizations)", "transformers")
def parametrized(door: Any) -> dict[str, Any]:
    layers = net(door.rank)
    nn.utils.parametrizations.weight_norm(layers[0])
    return door.train(layers)


class OfSequences(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.reader = Reader(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.reader(x.view(-1, 4, 4), 1 + (x[:, 0].abs() * 3).long() % 4)
        return out


@right("a recurrent net and sequences of many lengths", "transformers")
def recurrent(door: Any) -> dict[str, Any]:
    return door.train(OfSequences(door.rank))


@right("a checkpoint of rank 0, from which all ranks go on", "transformers")
def resumed(door: Any) -> dict[str, Any]:
    """`train(resume_from_checkpoint=True)` in new objects."""
    arguments = {"save_strategy": "steps", "save_steps": 4, "optim": "adamw_torch", "learning_rate": 0.01}
    door.trainer(Model(net(door.rank)), steps=8, max_steps=4, **arguments).train()
    trainer = door.trainer(Model(net(17 + door.rank)), steps=8, max_steps=8, **arguments)
    trainer.train(resume_from_checkpoint=True)
    return door.weights(trainer)


@right("activation checkpointing", "transformers")
def activation_checkpointing(door: Any) -> dict[str, Any]:
    return door.train(Checkpointed(door.rank, reentrant=False))


@right("reentrant activation checkpointing", "transformers")
def reentrant_checkpointing(door: Any) -> dict[str, Any]:
    return door.train(Checkpointed(door.rank, reentrant=True), ddp_find_unused_parameters=False)


@right("a compiled model (torch.compile, XLA, hybridize)", "transformers")
def compiled(door: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    found = door.train(net(door.rank), torch_compile=True, torch_compile_backend="aot_eager", steps=3)
    return {name.replace("_orig_mod.", ""): value for name, value in found.items()}


@right("a last batch that is shorter on some ranks", "transformers")
def short_last_batch(door: Any) -> dict[str, Any]:
    """The Trainer fills it up with rows from the beginning."""
    return door.train(net(door.rank), rows=door.rows(4)[:-5])


@right("batch normalisation", "transformers", codec="none")
def batch_norm(door: Any) -> dict[str, Any]:
    found = door.train(Normed(door.rank, nn.BatchNorm1d))
    return {name if "running" not in name else f"own.{name}": value for name, value in found.items()}


class Seeds(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.manual_seed(100 + args.process_index)


@right("dropout, with a seed for each rank", "transformers")
def dropout(door: Any) -> dict[str, Any]:
    layers = net(door.rank)
    return door.train(nn.Sequential(layers[0], layers[1], nn.Dropout(0.3), layers[2]), callbacks=[Seeds()])


class Evaluates(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.is_world_process_zero:
            model.eval()
            with torch.no_grad():
                model(torch.ones(3, INPUTS), torch.ones(3, OUTPUTS))
            model.train()


@right("evaluation on rank 0 only", "transformers")
def evaluated_on_one(door: Any) -> dict[str, Any]:
    return door.train(Normed(door.rank, nn.LayerNorm), callbacks=[Evaluates()])


class Counts(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        counts = torch.tensor(1000.0 * state.global_step * (args.process_index + 1))
        self.seen.append(float(self.trainer.accelerator.reduce(counts, "mean")))


@right("sums and means of metrics between steps", "transformers", codec="exact")
def metrics(door: Any) -> dict[str, Any]:
    counts = Counts()
    trainer = door.trainer(Model(net(door.rank)), callbacks=[counts])
    counts.trainer = trainer
    trainer.train()
    return {"counts": counts.seen}


class Penalised(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers = net(seed)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = x.requires_grad_(True)
        said = self.layers(x)
        (slope,) = torch.autograd.grad(said.sum(), x, create_graph=True)
        return {"loss": F.mse_loss(said, labels) + 0.1 * (slope.norm(dim=1) - 1).square().mean(), "logits": said}


@right("gradients of gradients (a penalty on them)", "transformers")
def gradient_penalty(door: Any) -> dict[str, Any]:
    trainer = door.trainer(Penalised(door.rank), learning_rate=0.02)
    trainer.train()
    return door.weights(trainer)


@right("a script's own hooks on gradients", "transformers")
def own_hooks(door: Any) -> dict[str, Any]:
    model = net(door.rank)
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return door.train(model)


@right("the session ends and begins again", "transformers")
def begun_again(door: Any) -> dict[str, Any]:
    """Several calls of `train()`, of one Trainer and of another."""
    trainer = door.trainer(Model(net(door.rank)), steps=3)
    trainer.train()
    trainer.train()
    other = door.trainer(trainer.model, steps=3)
    other.train()
    return door.weights(other)


@right("workers of a DataLoader, by fork", "transformers", codec="none")
def forked_workers(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), dataloader_num_workers=0 if door.name == "gloo" else 1)


BY_CASYNC_ALONE: dict[str, Any] = {"ddp_find_unused_parameters": False}
"""Else DDP asks over gloo in each step which parameters were used, and gloo may be the first to miss the other rank."""


class Fails(TrainerCallback):
    def __init__(self, fail: Any) -> None:
        self.fail = fail

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3 and args.process_index == 1:
            self.fail()


@right(
    "an exception on one rank", "transformers", apart=True, ends=(1, 1), says="rank 1: ValueError: the labels of rank 1"
)
def exception(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), callbacks=[Fails(broken)], **BY_CASYNC_ALONE)


@right("a rank that is killed", "transformers", apart=True, ends=(1, -9), says="PeerFailureError.*rank 1")
def killed(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), callbacks=[Fails(die)], **BY_CASYNC_ALONE)


@right("two models and one optimizer", "transformers")
def two_models(door: Any) -> dict[str, Any]:
    return door.train(nn.Sequential(nn.Sequential(*net(door.rank)[:2]), nn.Sequential(net(door.rank)[2])))


class OfAllExperts(OfExperts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.experts(x, self.calls // 2 % 3)
        return out


@right("parameters that no rank uses in a step", "transformers")
def unused_by_all(door: Any) -> dict[str, Any]:
    return door.train(OfAllExperts(door.rank, door.rank), ddp_find_unused_parameters=True)


class Adds(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        if state.global_step == 2:
            more["optimizer"].add_param_group({"params": list(model.model[0].parameters()), "lr": 0.01})
            schedule = getattr(more["lr_scheduler"], "scheduler", more["lr_scheduler"])
            schedule.base_lrs.append(0.01)
            schedule.lr_lambdas.append(lambda _: 1.0)
        model.zero_grad()


@right("parameters that join the optimizer later (add_param_group)", "transformers")
def added_later(door: Any) -> dict[str, Any]:
    model = Model(net(door.rank))
    optimizer = torch.optim.SGD(model.model[2].parameters(), lr=0.05, momentum=0.9)
    trainer = door.trainer(model, optimizer=optimizer, callbacks=[Adds()])
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer.train()
    return door.weights(trainer)


class GoesBack(TrainerCallback):
    """To the best step, and to a copy of its optimizer."""

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        optimizer = more["optimizer"]
        if state.global_step == 1:
            self.kept = copy.deepcopy(optimizer)
            self.best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if state.global_step == 3:
            model.load_state_dict(self.best[0])
            optimizer.load_state_dict(self.best[1])
        if state.global_step == 4:
            optimizer.load_state_dict(self.kept.state_dict())


@right("a state that the optimizer loads in the middle of training", "transformers")
def state_loaded(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), callbacks=[GoesBack()], steps=6, optim="adamw_torch", learning_rate=0.01)


@right("copies of an optimizer (deepcopy, pickle)", "transformers", codec="none")
def copied_optimizer(door: Any) -> dict[str, Any]:
    return door.train(net(door.rank), callbacks=[GoesBack()], steps=6, optim_args="momentum=0.9")

"""Programs of Lightning whose models are not all of a kind."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import callbacks
from torch import nn
from torch.nn import functional as F

from tests.python.programs.cells import right
from tests.python.programs.data import OUTPUTS, net
from tests.python.programs.doors_lightning import Module
from tests.python.programs.models import Adapter, Experts, Mixed, Odd, Reader, Waves, Words
from tests.python.programs.training import Normed


class Freezes(callbacks.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            pl_module.model[0].requires_grad_(False)


@right("parameters that are frozen later", "lightning")
def frozen_later(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), callbacks=[Freezes()], of_ddp={"find_unused_parameters": True})


class Added(callbacks.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            trainer.optimizers[0].add_param_group({"params": list(pl_module.model[0].parameters()), "lr": 0.01})
        pl_module.zero_grad()


@right("parameters that join the optimizer later (add_param_group)", "lightning")
def added_later(door: Any) -> dict[str, Any]:
    module = Module(net(door.rank), lambda model: torch.optim.SGD(model[2].parameters(), lr=0.05, momentum=0.9))
    return door.fit(module, callbacks=[Added()])


class OfExperts(Module):
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        use = (number + self.global_rank) % 2 if number < 3 else number % 2
        return F.mse_loss(self(batch[0], use), batch[1])


@right("parameters that some ranks do not use", "lightning")
def unused_by_some(door: Any) -> dict[str, Any]:
    return door.fit(OfExperts(Experts(door.rank)), of_ddp={"find_unused_parameters": True})


class OfWords(Module):
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        words = (batch[0][:, :9].abs() * 7).long() % 20
        return F.cross_entropy(self(words[:, :-1]).reshape(-1, 20), words[:, 1:].reshape(-1))


@right("weights that are tied", "lightning")
def tied(door: Any) -> dict[str, Any]:
    return door.fit(OfWords(Words(door.rank, tied=True)))


@right("an embedding whose gradients are sparse", "lightning")
def sparse(door: Any) -> dict[str, Any]:
    door.codec = {"*table*": "none", "*": door.codec}
    return door.fit(OfWords(Words(door.rank, sparse=True)))


@right("parameters without elements or dimensions, or not contiguous", "lightning")
def odd(door: Any) -> dict[str, Any]:
    return door.fit(Module(Odd(door.rank), lambda model: torch.optim.SGD(model.parameters(), lr=0.02)))


@right("convolutions in channels_last", "lightning")
def channels_last(door: Any) -> dict[str, Any]:
    torch.manual_seed(door.rank)
    shape = nn.Unflatten(1, (4, 2, 2))
    layers = nn.Sequential(shape, nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, OUTPUTS))
    return door.fit(Module(layers.to(memory_format=torch.channels_last)))


@right("complex parameters", "lightning")
def complex_parameters(door: Any) -> dict[str, Any]:
    found = door.fit(Module(Waves(door.rank), lambda model: torch.optim.SGD(model.parameters(), lr=0.05)))
    return {name: torch.view_as_real(value) if value.is_complex() else value for name, value in found.items()}


@right("parameters of several dtypes", "lightning")
def several_dtypes(door: Any) -> dict[str, Any]:
    return door.fit(Module(Mixed(door.rank), lambda model: torch.optim.SGD(model.parameters(), lr=0.02)), steps=2)


@right("training in float64", "lightning")
def float64(door: Any) -> dict[str, Any]:
    return door.fit(Module(net(door.rank)), precision="64-true")


@right("adapters beside frozen weights (LoRA)", "lightning")
def adapters(door: Any) -> dict[str, Any]:
    layers = net(door.rank)
    model = nn.Sequential(Adapter(layers[0]), layers[1], Adapter(layers[2]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return door.fit(Module(model, lambda _: torch.optim.SGD(trained, lr=0.1)))


@right("weights that are computed (weight_norm, parametrizations)", "lightning")
def parametrized(door: Any) -> dict[str, Any]:
    layers = net(door.rank)
    nn.utils.parametrizations.weight_norm(layers[0])
    return door.fit(Module(layers))


class OfSequences(Module):
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        x, y = batch
        return F.mse_loss(self(x.view(-1, 4, 4), 1 + (x[:, 0].abs() * 3).long() % 4), y)


@right("a recurrent net and sequences of many lengths", "lightning")
def recurrent(door: Any) -> dict[str, Any]:
    return door.fit(OfSequences(Reader(door.rank)))


@right("batch normalisation", "lightning", codec="none")
def batch_norm(door: Any) -> dict[str, Any]:
    found = door.fit(Module(Normed(door.rank, nn.BatchNorm1d)))
    return {name if "running" not in name else f"own.{name}": value for name, value in found.items()}


class OfAllExperts(Module):
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return F.mse_loss(self(batch[0], number // 2 % 3), batch[1])


@right("parameters that no rank uses in a step", "lightning")
def unused_by_all(door: Any) -> dict[str, Any]:
    return door.fit(OfAllExperts(Experts(door.rank)), of_ddp={"find_unused_parameters": True})

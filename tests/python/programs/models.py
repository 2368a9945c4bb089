"""Programs whose models are not all of a kind: frozen, unused, tied and odd parameters, and those that come and go."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.python.programs.cells import right
from tests.python.programs.data import HIDDEN, INPUTS, OUTPUTS, net


def sgd(door: Any, model: Any, lr: float = 0.05) -> Any:
    return door.optimizer(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01), model)


@right("parameters that are frozen later", "optimizer hook backend fsdp2 local accelerate", codec="alike")
def frozen_later(door: Any) -> dict[str, Any]:
    """Momentum and weight decay would move them."""
    model = door.model(net(door.seed), find_unused_parameters=True)
    optimizer = sgd(door, model)
    for number, (x, y) in enumerate(door.batches(8)):
        if number == 4:
            door.bare(model)[0].requires_grad_(False)
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


@right("parameters that are unfrozen later", "optimizer hook backend fsdp2 local accelerate")
def unfrozen_later(door: Any) -> dict[str, Any]:
    plain = net(door.seed)
    plain[0].requires_grad_(False)
    model = door.model(plain)
    optimizer = sgd(door, model)
    for number, (x, y) in enumerate(door.batches(8)):
        if number == 4:
            door.end()
            plain[0].requires_grad_(True)
            model = door.again(model)
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


@right("parameters that are replaced by others", "optimizer hook backend local accelerate", codec="alike")
def replaced(door: Any) -> dict[str, Any]:
    """A hidden layer that grows, twice."""
    model = door.model(net(door.seed))
    optimizer = sgd(door, model)
    for number, (x, y) in enumerate(door.batches(9)):
        if number in (3, 6):
            door.end()
            layers = door.bare(model)
            for layer, dim in ((layers[0], 0), (layers[2], 1)):
                shape = list(layer.weight.shape)
                shape[dim] = 8
                more = torch.full(shape, 0.01 * number)
                put(optimizer, layer, "weight", torch.cat([layer.weight.detach(), more], dim))
            put(optimizer, layers[0], "bias", torch.cat([layers[0].bias.detach(), torch.zeros(8)]))
            model = door.again(model)
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


def put(optimizer: Any, layer: nn.Module, name: str, values: torch.Tensor) -> None:
    old, new = getattr(layer, name), nn.Parameter(values)
    setattr(layer, name, new)
    optimizer.state.pop(old, None)
    params = optimizer.param_groups[0]["params"]
    params[[one is old for one in params].index(True)] = new


@right(
    "parameters that join the optimizer later (add_param_group)",
    "optimizer hook backend fsdp2 accelerate",
    codec="alike",
)
def added_later(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed))
    layers = door.bare(model)
    optimizer = torch.optim.SGD(layers[2].parameters(), lr=0.05, momentum=0.9)
    optimizer = door.optimizer(optimizer, model)
    for number, (x, y) in enumerate(door.batches(8)):
        if number == 4:
            optimizer.add_param_group({"params": list(layers[0].parameters()), "lr": 0.01})
        model.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


class Experts(nn.Module):
    """Which of two layers is used depends on the batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.last = nn.Linear(INPUTS, 8), nn.Linear(INPUTS, 8), nn.Linear(8, OUTPUTS)

    def forward(self, x: torch.Tensor, use: int) -> torch.Tensor:
        hidden = (self.first(x), self.second(x), self.first(x) + self.second(x))[use]
        out: torch.Tensor = self.last(torch.tanh(hidden))
        return out


@right("parameters that some ranks do not use", "optimizer hook backend local accelerate", beside="gloo")
def unused_by_some(door: Any) -> dict[str, Any]:
    model = door.model(Experts(door.seed), find_unused_parameters=True)
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for number, (x, y) in enumerate(door.batches(6)):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x, (number + door.rank) % 2), y))
        optimizer.step()
    return door.weights(model)


@right("parameters that no rank uses in a step", "optimizer hook backend fsdp2 local accelerate", codec="alike")
def unused_by_all(door: Any) -> dict[str, Any]:
    model = door.model(Experts(door.seed), find_unused_parameters=True)
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for number, (x, y) in enumerate(door.batches(8)):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x, number // 2 % 3), y))
        optimizer.step()
    return door.weights(model)


class Words(nn.Module):
    """Predicts a word from those before it; the words' table is the last layer's weight as well, if it is tied."""

    def __init__(self, seed: int, tied: bool = False, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(20, 12, sparse=sparse)
        self.mix = nn.Linear(12, 12)
        self.head = nn.Linear(12, 20, bias=not tied)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.mix(self.table(words))))
        return out


def sentences(door: Any, steps: int) -> Any:
    for x, _ in door.batches(steps):
        yield (x[:, :9].abs() * 7).long() % 20


def train_on_words(door: Any, model: Any, optimizer: Any, steps: int = 6) -> None:
    for words in sentences(door, steps):
        optimizer.zero_grad()
        said = model(words[:, :-1])
        door.backward(F.cross_entropy(said.reshape(-1, 20), words[:, 1:].reshape(-1)))
        optimizer.step()


@right("weights that are tied", "optimizer hook backend fsdp2 local accelerate")
def tied(door: Any) -> dict[str, Any]:
    model = door.model(Words(door.seed, tied=True))
    train_on_words(door, model, sgd(door, model))
    return door.weights(model)


@right("an embedding whose gradients are sparse", "optimizer hook backend local accelerate", codec="alike")
def sparse(door: Any) -> dict[str, Any]:
    compression = {"*table*": "none", "*": door.codec}
    model = Words(door.seed, sparse=True)
    if door.name in ("optimizer", "hook", "accelerate"):
        door.codec = compression
    model = door.model(model)
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.2), model)
    train_on_words(door, model, optimizer)
    return door.weights(model)


@right("an embedding that a rank does not use at first", "optimizer local", codec="none", beside="gloo")
def sparse_and_unused_at_first(door: Any) -> dict[str, Any]:
    torch.manual_seed(door.seed)
    model = nn.ModuleDict({"table": nn.Embedding(20, OUTPUTS, sparse=True), "line": nn.Linear(INPUTS, OUTPUTS)})
    if door.name == "gloo":  # DDP has no forward to call here
        for parameter in model.parameters():
            torch.distributed.broadcast(parameter.data, 0)
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for number, (x, y) in enumerate(door.batches(5)):
        optimizer.zero_grad()
        said = model["line"](x)
        if number >= 2 or door.rank == 0:
            said = said + model["table"]((x[:, 0].abs() * 7).long() % 20)
        door.backward(F.mse_loss(said, y))
        if door.name == "gloo":
            for parameter in model.parameters():
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
                torch.distributed.all_reduce(gradient)
                parameter.grad = gradient / door.size
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


class Odd(nn.Module):
    """Parameters without elements, without dimensions, not contiguous; buffers of other dtypes."""

    def __init__(self, seed: int, scalar: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.empty = nn.Parameter(torch.zeros(0, OUTPUTS))
        self.scale = nn.Parameter(torch.tensor(1.5) if scalar else torch.tensor([1.5]))
        self.turned = nn.Parameter(torch.randn(OUTPUTS, INPUTS).t() * 0.2)
        self.every_other = nn.Parameter(torch.randn(INPUTS, 2 * OUTPUTS)[:, ::2] * 0.2)
        self.one = nn.Parameter(torch.randn(1, 1))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", torch.arange(OUTPUTS) % 2 == seed)
        self.register_buffer("bytes", torch.full((3,), seed, dtype=torch.uint8))
        self.register_buffer("wide", torch.tensor(float(seed), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ self.turned + x @ self.every_other, self.empty]) * self.scale + self.one


@right("parameters without elements or dimensions, or not contiguous", "optimizer hook backend local accelerate")
def odd(door: Any) -> dict[str, Any]:
    model = door.model(Odd(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.02), model)
    for x, y in door.batches(5):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


@right("convolutions in channels_last", "optimizer hook backend local accelerate")
def channels_last(door: Any) -> dict[str, Any]:
    torch.manual_seed(door.seed)
    model = nn.Sequential(nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, OUTPUTS))
    model = door.model(model.to(memory_format=torch.channels_last))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for x, y in door.batches(5):
        optimizer.zero_grad()
        image = x.view(-1, 4, 2, 2).contiguous(memory_format=torch.channels_last)
        door.backward(F.mse_loss(model(image), y))
        optimizer.step()
    return door.weights(model)


class Waves(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.waves = nn.Parameter(torch.randn(INPUTS, OUTPUTS, dtype=torch.complex64) * 0.2)
        self.line = nn.Linear(OUTPUTS, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        phase = torch.complex(x, x.roll(1, 1))
        out: torch.Tensor = self.line((phase @ self.waves - 1j).abs())
        return out


@right("complex parameters", "optimizer hook backend fsdp2 local accelerate", codec="alike")
def complex_parameters(door: Any) -> dict[str, Any]:
    model = door.model(Waves(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for x, y in door.batches(5):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    found = door.weights(model)
    return {name: torch.view_as_real(value) if value.is_complex() else value for name, value in found.items()}


class Mixed(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(INPUTS, HIDDEN)
        self.middle = nn.Linear(HIDDEN, HIDDEN).bfloat16()
        self.last = nn.Linear(HIDDEN, OUTPUTS).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)).bfloat16())).double())
        return out.float()


@right("parameters of several dtypes", "local", codec="alike", beside="gloo", far=2e-2)
@right("parameters of several dtypes", "optimizer hook backend fsdp2 accelerate", codec="alike", beside="gloo")
def several_dtypes(door: Any) -> dict[str, Any]:
    """bfloat16's own rounding is a part in 256, so these are compared after few steps."""
    model = door.model(Mixed(0))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.02), model)
    for x, y in door.batches(2):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return {name: values.double() for name, values in door.weights(model).items()}


@right("training in float64", "optimizer hook backend fsdp2 local accelerate")
def float64(door: Any) -> dict[str, Any]:
    model = door.model(net(door.seed).double())
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for x, y in door.batches(5):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x.double()), y.double()))
        optimizer.step()
    return door.weights(model)


class Adapter(nn.Module):
    """LoRA: a layer that stays, and a product of two thin matrices that is trained."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) * 0.3)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + x @ self.down.t() @ self.up.t()
        return out


@right("adapters beside frozen weights (LoRA)", "optimizer hook backend fsdp2 local accelerate")
def adapters(door: Any) -> dict[str, Any]:
    layers = net(door.seed)
    model = door.model(nn.Sequential(Adapter(layers[0]), layers[1], Adapter(layers[2])))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = door.optimizer(torch.optim.SGD(trained, lr=0.1), model)
    for x, y in door.batches(6):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


@right("weights that are computed (weight_norm, parametrizations)", "optimizer hook backend fsdp2 local accelerate")
def parametrized(door: Any) -> dict[str, Any]:
    layers = net(door.seed)
    nn.utils.parametrizations.weight_norm(layers[0])
    nn.utils.parametrizations.orthogonal(layers[2], orthogonal_map="cayley", use_trivialization=False)
    model = door.model(layers)
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.02), model)
    for x, y in door.batches(5):
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x), y))
        optimizer.step()
    return door.weights(model)


class Reader(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.lstm = nn.LSTM(4, 10, num_layers=2, batch_first=True)
        self.head = nn.Linear(10, OUTPUTS)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        out: torch.Tensor = self.head(hidden[-1])
        return out


@right("a recurrent net and sequences of many lengths", "optimizer hook backend fsdp2 local accelerate")
def recurrent(door: Any) -> dict[str, Any]:
    model = door.model(Reader(door.seed))
    optimizer = door.optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for x, y in door.batches(5):
        lengths = 1 + (x[:, 0].abs() * 3).long() % 4
        optimizer.zero_grad()
        door.backward(F.mse_loss(model(x.view(-1, 4, 4), lengths), y))
        optimizer.step()
    return door.weights(model)

"""One process of a job that trains under FSDP2: `fsdp_training.py MODEL CODEC REDUCE FOLDER [resume]`.

Saves at the end, or begins with what was saved. Prints its loss, what it sent, and what is pending.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import casync.torch as hvd
import torch
import torch.distributed as dist
from casync.torch import fsdp
from sklearn.datasets import load_digits
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

MODEL, CODEC, REDUCE, FOLDER = sys.argv[1:5]
RESUMES = "resume" in sys.argv[5:]
STEPS = {"digits": 120, "transformer": 80}[MODEL]

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo" if REDUCE == "replicate" else "casync")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


class Transformer(torch.nn.Module):
    """Says for each of 16 letters which one is at the mirrored place."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(12, 48)
        self.places = torch.nn.Parameter(0.1 * torch.randn(16, 48))
        layer = torch.nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(48, 12)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.letters(words) + self.places))


def made() -> tuple[torch.nn.Module, list[torch.nn.Module]]:
    """A model, and the parts of it that are sharded by themselves. Sizes that 4 and 3 do not divide."""
    if MODEL == "transformer":
        transformer = Transformer()
        return transformer, list(transformer.layers.layers)
    layers = [torch.nn.Linear(64, 130), torch.nn.Linear(130, 70), torch.nn.Linear(70, 10)]
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    return model, [*layers]


def batches() -> Any:
    """Each rank's own."""
    numbers = torch.Generator().manual_seed(1000 + RANK)
    if MODEL == "transformer":
        while True:
            words = torch.randint(12, (32, 16), generator=numbers)
            yield words, words.flip(1)
    images, digits = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    while True:
        chosen = torch.randint(len(images), (32,), generator=numbers)
        yield images[chosen].float() / 16, digits[chosen]


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    given, wanted = batch
    return cross_entropy(model(given).reshape(-1, 12 if MODEL == "transformer" else 10), wanted.reshape(-1))


def sums(compressed: fsdp.FsdpCompression) -> dict[str, float]:
    """Of what is pending of each parameter."""
    return {name: float(value.full_tensor().double().sum()) for name, value in compressed.state_dict().items()}


def by_ranks(model: torch.nn.Module, compressed: fsdp.FsdpCompression) -> dict[str, float]:
    """The same from each rank's own numbers. A module's are a row for each rank: of each of its parameters the rows
    that this rank has, as many on each rank.
    """
    found = {}
    owned = {
        one.named.name.removeprefix("fsdp.shard."): one.group.session.codec_states.residual(one.named.name)
        for one in compressed._reductions
        if one.named.name in one.group.session.codec_states.residual_names()
    }
    every: list[Any] = [None] * SIZE
    dist.all_gather_object(every, owned)
    parts = {name: part for name, part in model.named_modules() if name in owned}
    for name, part in parts.items():
        mean = sum(rank[name].astype("float64") for rank in every).reshape(SIZE, -1) / SIZE
        at = 0
        for parameter, value in part.named_parameters():
            rows, columns = -(-value.shape[0] // SIZE), value[0].numel()
            block = mean[:, at : at + rows * columns].reshape(SIZE * rows, columns)
            found[f"shard.{name}.{parameter}"] = float(block[: value.shape[0]].sum())
            at += rows * columns
    return found


def main() -> None:
    mesh = None
    if REDUCE != "shard":
        override: Any = {"replicate": "casync"} if REDUCE == "replicate" else None
        mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("replicate", "shard"), backend_override=override)
    model, parts = made()
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    how: Any = REDUCE
    compressed = fsdp.compress(model, compression=CODEC, reduce=how, min_numel=500)
    group = compressed._reductions[0].group
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    note: dict[str, Any] = {}
    if RESUMES:
        state: dict[str, Any] = {"model": get_model_state_dict(model), "casync": compressed}
        load(state, checkpoint_id=FOLDER)
        set_model_state_dict(model, state["model"])
        note["pending"] = sums(compressed)
    losses = []
    given = batches()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, next(given))
        if step == STEPS - 10:
            before = group.session.counters()["sent_bytes"]
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(float(mean) / SIZE)
    note["sent"] = (group.session.counters()["sent_bytes"] - before) / 10
    note["numel"] = sum(one.numel for one in compressed._reductions)
    note["loss"] = sum(losses[-5:]) / 5
    sharded: Any = model.parameters()
    whole = torch.cat([parameter.full_tensor().reshape(-1) for parameter in sharded])
    every: list[Any] = [None] * SIZE
    dist.all_gather_object(every, float(whole.double().sum()))
    note["alike"] = len(set(every)) == 1
    if not RESUMES:
        note["pending"] = sums(compressed)
        note["by ranks"] = by_ranks(model, compressed) if REDUCE == "shard" else {}
        save({"model": get_model_state_dict(model), "casync": compressed}, checkpoint_id=FOLDER)
    if RANK == 0:
        print(json.dumps(note), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    hvd.BackendOptions()  # the backend is known
    main()

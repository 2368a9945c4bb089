"""A small transformer learns to write Python's manual, on two sites with a slow link between them.

    python -m benchmarks.netlab run --hosts 2 --np 4 --rate 100mbit --rtt 50 -- python examples/04_two_sites/train.py

The two workers of a site average their gradients in every step. Between the sites parameters are averaged every 20
steps, by DiLoCo under one bit per number. With `--sync-every 0` gradients go between the sites in every step. The text
is `pydoc_data.topics`, which Python brings along.
"""

import argparse
import contextlib
import time
from pydoc_data.topics import topics

import casync.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from casync.relaxed.levels import same_site

CONTEXT, WIDTH, BATCH = 64, 128, 8


class Transformer(nn.Module):
    """Predicts the next character: 0.8 million weights."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(characters, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.letters(text) + self.places, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(hidden)
        return logits


def batch_of(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    begins = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    rows = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sync-every", type=int, default=20, help="0: gradients in every step")
    parser.add_argument("--compression", default="onebit", help="between the sites")
    parser.add_argument("--site", help="the same word on all workers of a site; a host is a site without it")
    given = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    text = "".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    codes = torch.tensor([characters.index(one) for one in text])
    split = len(codes) * 9 // 10
    training, test = codes[:split], codes[split:]
    model = Transformer(len(characters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(hvd.rank())  # each worker has batches of its own

    if given.sync_every:
        site = same_site(given.site)
        inside = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=site)
        between = hvd.DiLoCo(
            model, inside, sync_every=given.sync_every, compression=given.compression,
            outer_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),  # so few rounds want no momentum
        )  # fmt: skip
        train(model, inside, training, data, given.steps, between)
    else:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        every = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=given.compression)
        train(model, every, training, data, given.steps, None)

    with torch.no_grad():
        loss = torch.stack([loss_of(model, batch_of(test, torch.Generator().manual_seed(i))) for i in range(20)]).mean()
    everyones = hvd.allgather_object(f"{loss:.6f}")
    if hvd.rank() == 0:
        assert len(set(everyones)) == 1, everyones
        print(
            f"loss {loss:.3f} on all {hvd.size()} workers; rank 0 sent {hvd.counters()['sent_bytes'] / 2**20:.1f} MiB"
        )


def train(model, optimizer, text, data, steps, between) -> None:  # noqa: ANN001
    """So many steps, within the rounds between the sites if there are such."""
    began = time.perf_counter()
    with between or contextlib.nullcontext():
        for step in range(1, steps + 1):
            loss = loss_of(model, batch_of(text, data))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0 and hvd.rank() == 0:
                seconds = (time.perf_counter() - began) / step
                print(f"step {step}: loss {loss.item():.3f}, {seconds:.3f} s a step", flush=True)


if __name__ == "__main__":
    main()

"""The tasks on which training is compared: handwritten digits, and a transformer that writes Python's manual."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["TASKS", "Task", "text_of"]

Batch = tuple[torch.Tensor, torch.Tensor]
CONTEXT, WIDTH, LAYERS, HEADS = 64, 128, 4, 4


@dataclass(frozen=True)
class Task:
    """What is trained, on what, and how the result is measured."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    """A batch of one worker, from its own generator."""
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    test: Callable[[], list[Batch]]
    """Batches on which no worker trains."""
    steps: int
    lr: Mapping[str, float]
    """The learning rate of each optimizer that the task is for."""
    clip: float
    """The largest norm of a gradient that steps; 0 takes gradients as they are."""
    data: str
    """What the data is, with its hash."""


class Transformer(nn.Module):
    """Predicts the next character: 0.83 million weights."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(characters, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.letters(text) + self.places, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(hidden)
        return logits


def text_of() -> tuple[torch.Tensor, int, str]:
    """The codes of Python's manual, how many characters there are, and a hash of it."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    code = {character: number for number, character in enumerate(characters)}
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return torch.tensor([code[one] for one in text]), len(characters), digest


def _text() -> Task:
    codes, characters, digest = text_of()
    split = len(codes) * 9 // 10
    training, test = codes[:split], codes[split:]

    def rows(text: torch.Tensor, count: int, generator: torch.Generator) -> Batch:
        begins = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator)
        found = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins])
        return found[:, :-1], found[:, 1:]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return Task(
        model=lambda: Transformer(characters),
        batch=lambda generator: rows(training, 8, generator),
        loss=loss,
        test=lambda: [rows(test, 32, torch.Generator().manual_seed(i)) for i in range(16)],
        steps=1600,
        lr={"AdamW": 2e-3, "momentum": 0.3},
        clip=1.0,
        data=f"pydoc_data.topics, {len(codes)} characters, sha256 {digest}",
    )


def _digits() -> Task:
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).flatten(1)
    labels = torch.tensor(digits.target[order])

    def batch(generator: torch.Generator) -> Batch:
        picked = torch.randint(len(labels) - 360, (16,), generator=generator) + 360
        return images[picked], labels[picked]

    return Task(
        model=lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
        batch=batch,
        loss=lambda model, one: F.cross_entropy(model(one[0]), one[1]),
        test=lambda: [(images[:360], labels[:360])],
        steps=640,
        lr={"AdamW": 1e-3, "SGD": 0.1, "momentum": 0.02, "Muon": 0.01},
        clip=0.0,
        data="sklearn's digits, 1,437 to train on and 360 to test on",
    )


TASKS: dict[str, Callable[[], Task]] = {"digits": _digits, "text": _text}


def cosine(step: int, steps: int, warmup: int = 50) -> float:
    """The factor of the learning rate in `step`, from 0: it rises over `warmup` steps, and falls to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    part = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * part))

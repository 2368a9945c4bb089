"""One rank: trains the classifier once for each seed, and checks that all ranks end with the same parameters.

casyncrun -np 4 python -m benchmarks.accuracy.worker CODEC SEEDS RESULT.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import casync.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, TEST_IMAGES = 300, 32, 360
LEARNING_RATE, MOMENTUM = 0.05, 0.9


def load_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels, in one order for all seeds; the first `TEST_IMAGES` are the test's."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.data, dtype=torch.float32)[order] / 16.0, torch.tensor(digits.target)[order]


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def train(codec: str, seed: int, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Accuracy in percent on the test images. All ranks draw the same order, and each takes its part of every batch."""
    torch.manual_seed(seed)
    model = make_model()
    # Names of their own: what a codec keeps of one run is nothing to the next.
    names = [(f"{seed}.{name}", parameter) for name, parameter in model.named_parameters()]
    sgd = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=names, compression=codec)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    shuffle = torch.Generator().manual_seed(1000 + seed)
    whole, order = BATCH * hvd.size(), torch.empty(0, dtype=torch.int64)
    for _ in range(STEPS):
        if len(order) < whole:
            order = TEST_IMAGES + torch.randperm(len(labels) - TEST_IMAGES, generator=shuffle)
        batch, order = order[:whole][hvd.rank() :: hvd.size()], order[whole:]
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    check_replicas(model)
    with torch.no_grad():
        right = model(images[:TEST_IMAGES]).argmax(1) == labels[:TEST_IMAGES]
    return 100.0 * right.float().mean().item()


def check_replicas(model: nn.Module) -> None:
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    if len(set(hvd.allgather_object(digest))) != 1:
        raise SystemExit("the ranks hold different parameters")


def main() -> None:
    codec, seeds, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    hvd.init()
    images, labels = load_data()
    figures: dict[str, list[float]] = {"accuracy": [], "sent_mib": []}
    for seed in range(seeds):
        before = hvd.counters()["sent_bytes"]
        figures["accuracy"].append(round(train(codec, seed, images, labels), 4))
        figures["sent_mib"].append(round((hvd.counters()["sent_bytes"] - before) / 2**20, 4))
    if hvd.rank() == 0:
        out.write_text(json.dumps(figures))
    hvd.shutdown()


if __name__ == "__main__":
    main()

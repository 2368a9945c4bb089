"""DistributedDataParallel on handwritten digits, with gradients that CaSync compresses.

    casyncrun -np 4 python examples/from_ddp/digits.py --compression "powersgd(rank=4, start_step=20)"

To a script for DDP it adds the two lines that are marked (1) and (2); with `--compression ddp` it is one without them.
"""

import argparse
import contextlib

import casync.torch as hvd
import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_data() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """1,437 images to train on, and images and labels of 360 to test on; the same split on every rank."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order])
    return TensorDataset(images[360:], labels[360:]), images[:360], labels[:360]


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--compression", default="onebit", help="a codec, or `ddp` for DDP without CaSync")
    parser.add_argument("--accumulate", type=int, default=1, help="batches to a step; the others are under no_sync()")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(42)
    torch.set_num_threads(1)  # the ranks of one host share its cores
    training, test_images, test_labels = load_data()
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=16, sampler=sampler)

    model = DistributedDataParallel(make_model())
    if arguments.compression != "ddp":
        hvd.init()  # (1)
        model.register_comm_hook(hvd.ddp_state(compression=arguments.compression), hvd.ddp_hook)  # (2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for index, (images, labels) in enumerate(loader, start=1):
            is_last = index % arguments.accumulate == 0
            with contextlib.nullcontext() if is_last else model.no_sync():
                (F.cross_entropy(model(images), labels) / arguments.accumulate).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()

    with torch.no_grad():
        accuracy = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"{arguments.compression}: accuracy {100 * accuracy:.2f} %")
        if arguments.compression != "ddp":
            print(f"rank 0 sent {hvd.counters()['sent_bytes'] / 2**20:.1f} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

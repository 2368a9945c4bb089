"""Horovod's first example on handwritten digits: a small convolutional net, trained by all ranks together.

    casyncrun -np 4 python examples/03_from_horovod/digits.py

But for the import it is a script for Horovod, from the first line to the last; so it says nothing of compression beyond
Horovod's own `--fp16-allreduce`.
"""

import argparse

import casync.torch as hvd
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    """Two convolutions and two dense layers; nine tenths of its parameters are in the first dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 128)
        self.output = nn.Linear(128, 10)
        self.dropout = nn.Dropout(0.2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = F.relu(self.conv1(images))
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        hidden = self.dropout(F.relu(self.hidden(features.flatten(1))))
        return F.log_softmax(self.output(hidden), dim=1)


def load_data() -> tuple[Dataset, Dataset]:
    """1,437 images to train on and 360 to test on; the same split on every rank."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order])
    return TensorDataset(images[360:], labels[360:]), TensorDataset(images[:360], labels[:360])


def share_of(data: Dataset, batch_size: int, shuffle: bool = False) -> DataLoader:
    """This rank's share of the data, in batches."""
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle)
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, epoch: int, every: int) -> None:
    model.train()
    loader.sampler.set_epoch(epoch)  # another order in each epoch, the same on all ranks
    for index, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        if index % every == 0 and hvd.rank() == 0:
            print(f"epoch {epoch:2}, batch {index:3} of {len(loader)}: loss {loss.item():.4f}", flush=True)


def average(value: float, name: str) -> float:
    """The mean of one number over all ranks."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> float:
    """The accuracy over the test data of all ranks, which rank 0 prints."""
    model.eval()
    loss = correct = 0.0
    for images, labels in loader:
        output = model(images)
        loss += F.nll_loss(output, labels, reduction="sum").item()
        correct += (output.argmax(1) == labels).sum().item()
    count = len(loader.sampler)
    loss, accuracy = average(loss / count, "loss"), average(correct / count, "accuracy")
    if hvd.rank() == 0:
        print(f"test: loss {loss:.4f}, accuracy {100 * accuracy:.2f} %", flush=True)
    return accuracy


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16, help="of one rank")
    parser.add_argument("--test-batch-size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.03, help="of one rank; multiplied by their number")
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum, not by their mean")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    hvd.init()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # the ranks of one host share its cores

    training, testing = load_data()
    loader = share_of(training, arguments.batch_size, shuffle=True)
    test_loader = share_of(testing, arguments.test_batch_size)

    model = Net()
    # The mean over N ranks is one step for N batches. Adasum adds up what is independent by itself.
    scale = 1 if arguments.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr * scale, momentum=arguments.momentum)

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if arguments.use_adasum else hvd.Average,
        gradient_predivide_factor=arguments.gradient_predivide_factor,
    )

    for epoch in range(1, arguments.epochs + 1):
        train(model, optimizer, loader, epoch, arguments.log_interval)
        test(model, test_loader)


if __name__ == "__main__":
    main()

"""Train a small convolutional net on handwritten digits, on several workers, uncompressed and with a codec.

    casyncrun -np 4 python examples/01_first_sync/train.py

The five lines that make it distributed are marked (1) to (5). Everything else is ordinary PyTorch.
"""

import argparse
import hashlib
import statistics
import time
from dataclasses import dataclass

import casync.torch as hvd
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from casync.bench import simulate

BATCH = 16  # per worker


@dataclass(frozen=True)
class Result:
    """One training run. `wire_bytes` were sent by all workers together; `digests` has one entry per worker."""

    accuracy: float
    wire_bytes: int
    seconds: float
    digests: tuple[str, ...]


class Net(nn.Module):
    """Nearly all of its 272,586 parameters are in layers large enough to be compressed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 512)
        self.output = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.output(F.relu(self.hidden(x.flatten(1))))


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """1,437 images to train on and 360 to test on; the same split on every worker."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order])
    return images[360:], labels[360:], images[:360], labels[:360]


def train(seed: int, codec: str, epochs: int, data: tuple[torch.Tensor, ...], progress: Progress) -> Result:
    images, labels, test_images, test_labels = data
    torch.manual_seed(100 * seed + hvd.rank())  # every worker starts differently: (3) makes them equal
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)

    # (2) From here on, step() uses the mean of all workers' gradients, which travel while backward still runs.
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=codec, topology="ps"
    )
    # (3) Every worker starts with rank 0's parameters.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    hvd.barrier()
    sent_before, start = hvd.counters()["sent_bytes"], time.perf_counter()
    shuffle = torch.Generator().manual_seed(seed)
    steps = len(labels) // (BATCH * hvd.size())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs * steps)
    task = progress.add_task(f"{codec}, seed {seed}", total=epochs * steps)
    for _ in range(epochs):
        # (4) Each worker takes its own share of the same shuffled order.
        share = torch.randperm(len(labels), generator=shuffle)[hvd.rank() :: hvd.size()]
        for i in range(steps):
            batch = share[i * BATCH : (i + 1) * BATCH]
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
            progress.advance(task)
    seconds = time.perf_counter() - start
    sent = hvd.counters()["sent_bytes"] - sent_before

    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    everyone = hvd.allgather_object((sent, hashlib.sha256(parameters).hexdigest()))
    return Result(accuracy, sum(s for s, _ in everyone), seconds, tuple(digest for _, digest in everyone))


def at_1_gbit(codec: str) -> float:
    """Milliseconds that one step's gradients would take if each worker had a host with a 1 Gbit/s link."""
    gradients = [(len(p), p[0].numel()) for p in reversed(list(Net().parameters()))]
    return 1e3 * simulate.predict(gradients, nodes=hvd.size(), rate=125e6, compression=codec, topology="ps")["step_s"]


def show(results: dict[str, list[Result]], console: Console) -> None:
    table = Table(title=f"{hvd.size()} workers, runs of each: {len(results['none'])}")
    columns = ("", "accuracy (median)", "on the wire, per run", "time per run (median)", "replicas")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for codec, runs in results.items():
        identical = all(len(set(run.digests)) == 1 for run in runs)
        table.add_row(
            "uncompressed" if codec == "none" else codec,
            f"{100 * statistics.median(run.accuracy for run in runs):.2f} %",
            f"{statistics.median(run.wire_bytes for run in runs) / 2**20:.1f} MiB",
            f"{statistics.median(run.seconds for run in runs):.2f} s",
            "identical" if identical else "DIFFERENT",
        )
    console.print(table)
    (_, plain), (codec, compressed) = ((name, sum(run.wire_bytes for run in runs)) for name, runs in results.items())
    if not compressed:
        return
    said = f"{codec} sent 1/{plain / compressed:.1f} of the bytes"
    if hvd.local_size() < hvd.size():
        slow, fast = (statistics.median(run.seconds for run in results[name]) for name in ("none", codec))
        console.print(f"{said} and took 1/{slow / fast:.1f} of the time.")
    else:
        console.print(
            f"{said}. On one host the network is not the limit, so this saves little time. Between {hvd.size()} hosts "
            f"with 1 Gbit/s links the gradients of one step would take {at_1_gbit('none'):.1f} ms uncompressed and "
            f"{at_1_gbit(codec):.1f} ms with {codec}, as `casync simulate` predicts."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--codec", default="onebit", help="a codec's spec, or a CompLL file of your own")
    arguments = parser.parse_args()

    hvd.init()  # (1) Find the other workers.
    torch.set_num_threads(1)  # the workers of this example share one machine
    data = load_data()

    # (5) Only rank 0 talks.
    console = Console(quiet=hvd.rank() != 0)
    results: dict[str, list[Result]] = {codec: [] for codec in ("none", arguments.codec)}
    bar = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=console) as progress:
        for seed in range(arguments.seeds):
            for codec in results:
                results[codec].append(train(seed, codec, arguments.epochs, data, progress))
    show(results, console)


if __name__ == "__main__":
    main()

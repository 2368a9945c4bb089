"""Horovod's synthetic benchmark: how many images a second all ranks train on, with data that is made up.

    casyncrun -np 4 python examples/03_from_horovod/synthetic_benchmark.py --model vgg

Run it on one rank too: what is missing from N times its rate is the cost of synchronisation.
"""

import argparse
import time

import casync.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

CLASSES, PIXELS = 100, 32


def convolutions(*widths: int) -> list[nn.Module]:
    """Of each width one, which halves the image."""
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    return layers


# Between them lies what matters to synchronisation: bytes of gradients for each second of arithmetic.
MODELS = {
    # 0.4 million parameters, nearly all arithmetic
    "conv": lambda: nn.Sequential(
        *convolutions(32, 64, 128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES)
    ),
    # 5 million, as VGG has them: most in the dense layers behind a few convolutions
    "vgg": lambda: nn.Sequential(
        *convolutions(32, 64, 128), nn.Flatten(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(),
        nn.Linear(512, CLASSES),
    ),
    # 14 million, and hardly any arithmetic
    "dense": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(3 * PIXELS * PIXELS, 3072), nn.ReLU(), nn.Linear(3072, 1536), nn.ReLU(),
        nn.Linear(1536, CLASSES),
    ),
}  # fmt: skip


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="vgg")
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum, not by their mean")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    hvd.init()
    torch.set_num_threads(1)  # the ranks of one host share its cores

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    model = MODELS[arguments.model]()
    scale = 1 if arguments.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * scale)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if arguments.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(arguments.batch_size, 3, PIXELS, PIXELS)
    labels = torch.randint(CLASSES, (arguments.batch_size,))

    def train(batches: int) -> float:
        """Images a second on this rank."""
        begin = time.perf_counter()
        for _ in range(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return batches * arguments.batch_size / (time.perf_counter() - begin)

    gradients = sum(parameter.numel() for parameter in model.parameters()) * 4 / 2**20
    say(f"model {arguments.model}, {gradients:.1f} MiB of gradients, batches of {arguments.batch_size}")
    train(arguments.num_warmup_batches)
    rates = torch.empty(arguments.num_iters)
    for index in range(arguments.num_iters):
        rates[index] = train(arguments.num_batches_per_iter)
        say(f"iteration {index}: {rates[index]:.1f} images/s on rank 0")

    mean, spread = rates.mean(), 1.96 * rates.std(correction=0)
    total = hvd.allreduce(torch.stack([mean, spread]), name="rates", op=hvd.Sum)
    say(f"per rank: {total[0] / hvd.size():.1f} +- {total[1] / hvd.size():.1f} images/s")
    say(f"total on {hvd.size()} ranks: {total[0]:.1f} +- {total[1]:.1f} images/s")


if __name__ == "__main__":
    main()

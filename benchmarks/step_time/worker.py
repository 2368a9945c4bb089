"""One rank of the step-time benchmark: every contender in one process, taking turns, so that they meet the same
machine.

Started on each host by `python -m benchmarks.step_time`. The backward pass only writes gradients: it copies random
values into fresh tensors, in reverse order of the parameters, as autograd's own backward would.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import casync.torch as hvd
import numpy as np
import torch
import torch.distributed as dist

from benchmarks.pytorch_hooks import register_hook
from benchmarks.step_time.codec_work import CodecWork
from casync.bench.reference_models import MODELS
from casync.session import default

CODEC_STEPS_BEFORE, CODEC_STEPS = 2, 9
TURNS_BEFORE = 5
POOL = 1 << 22  # values that gradients are cut from
PERIOD = 64  # of the part that is alike on all ranks: rows of a multiple of it are alike, a matrix of rank 1
SIOCGIFADDR = 0x8915  # linux/sockios.h


class _Write(torch.autograd.Function):
    """Passes a scalar through; its backward writes the gradient of one parameter."""

    @staticmethod
    def forward(ctx, x, parameter, pool, offset):  # noqa: ANN001, ANN205
        ctx.gradient = (parameter.shape, pool, offset)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        shape, pool, offset = ctx.gradient
        return grad, write_gradient(shape, pool, offset), None, None


def write_gradient(shape: torch.Size, pool: torch.Tensor, offset: int) -> torch.Tensor:
    gradient = torch.empty(shape)
    for part in parts_of(gradient):
        part.copy_(pool[offset : offset + part.numel()])
    return gradient


def parts_of(gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In each of them the pool begins anew."""
    return gradient.view(-1).split(POOL // 2)


class Model(torch.nn.Module):
    """Parameters of the given shapes over shared storage: each contender has its own Parameter objects, but no copy
    of the weights."""

    def __init__(self, storage: list[torch.Tensor], pool: torch.Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(tensor) for tensor in storage])
        self.pool = pool

    def forward(self) -> torch.Tensor:
        x = torch.zeros((), requires_grad=True)
        for index, parameter in enumerate(self.weights):
            x = _Write.apply(x, parameter, self.pool, offset_of(index))
        return x


def offset_of(index: int) -> int:
    return (index * 7919) % (POOL // 2)


def pool_of(rank: int) -> torch.Tensor:
    """What all ranks have in common, and as much noise of its own."""
    common = torch.randn(PERIOD, generator=torch.Generator().manual_seed(99))
    noise = torch.randn(POOL, generator=torch.Generator().manual_seed(100 + rank))
    return 1e-2 * (common.repeat(POOL // PERIOD) + noise)


Step = Callable[[], None]


def contender(spec: str, storage: list[torch.Tensor], pool: torch.Tensor, topology: str) -> tuple[Step, Model]:
    """`none` (no communication), `ddp`, `ddp:MB`, `ddp+fp16`, `ddp+powersgd` (rank 4), `casync:CODEC`, which goes by
    CaSync's sockets, or `casync+mpi:CODEC`.
    """
    model = Model(storage, pool)
    if spec == "none":

        def step() -> None:
            model().backward()

    elif spec.startswith("ddp"):
        bucket_mb = float(spec.partition(":")[2] or 25)
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb, init_sync=False
        )
        if "+fp16" in spec:
            register_hook(wrapped, "fp16_compress_hook")
        elif "+powersgd" in spec:
            register_hook(wrapped, "powerSGD_hook")

        def step() -> None:
            wrapped().backward()

    else:
        with world(spec):
            own = ours(spec, model, spec.partition(":")[2], topology)

        def step() -> None:
            with world(spec):
                own()

    return step, model


WORLDS: dict[str, default._Current] = {}
"""By transport. In one process, so that all contenders meet the same machine."""


@contextlib.contextmanager
def world(spec: str) -> Iterator[None]:
    """Has the default session be that of the contender's transport."""
    transport = "mpi" if spec.startswith("casync+mpi") else "tcp"
    before = default._current
    try:
        if transport not in WORLDS:
            default._current = WORLDS[transport] = default._Current()
            hvd.init(transport=transport)
        default._current = WORLDS[transport]
        yield
    finally:
        default._current = before


def ours(label: str, model: Model, codec: str, topology: str) -> Step:
    """A step of `model` with CaSync, whose gradients are called after `label`."""
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9),
        named_parameters=[(f"{label}.{name}", parameter) for name, parameter in model.named_parameters()],
        compression=codec,
        topology=topology,
    )

    def step() -> None:
        model().backward()
        optimizer.synchronize()

    return step


def timed(step: Step, model: Model) -> tuple[float, float, int]:
    """Seconds of a step, processor seconds, and bytes that moved in the busier direction; the largest of all ranks."""
    step()  # not measured: in a training no step comes after seconds of rest
    release(model)
    before = traffic()
    dist.barrier()
    start, start_cpu = time.perf_counter(), time.process_time()
    step()
    elapsed = time.perf_counter() - start, time.process_time() - start_cpu
    moved = max(after - was for after, was in zip(traffic(), before, strict=True))
    wall, busy, most = slowest(*elapsed, moved)
    release(model)
    return wall, busy, int(most)


def check(spec: str, model: Model) -> str:
    """Compares the synchronised gradients with the mean of what all ranks wrote; every rank knows every rank's pool."""
    pools = [pool_of(rank) for rank in range(dist.get_world_size())]
    dot = norm_got = norm_mean = worst = 0.0
    for index, parameter in enumerate(model.weights):
        offset = offset_of(index)
        for part in parts_of(parameter.grad):
            got = part.double()
            whole = sum((pool[offset : offset + part.numel()].double() for pool in pools), torch.zeros_like(got))
            mean = whole / len(pools)
            worst = max(worst, float((got - mean).abs().max()))
            dot += float(got @ mean)
            norm_got += float(got @ got)
            norm_mean += float(mean @ mean)
    cosine = dot / max((norm_got * norm_mean) ** 0.5, 1e-300)
    lossless = spec in ("casync:none", "casync+mpi:none", "ddp") or spec.startswith("ddp:")
    if lossless and worst > 1e-6:
        raise SystemExit(f"{spec}: a gradient is {worst} away from the mean of the ranks'")
    # A thousandth of a gradient has a tenth of its length; what has nothing to do with it, a cosine of 1e-3 at most.
    if cosine < 0.05:
        raise SystemExit(f"{spec}: the result points elsewhere than the mean gradient (cosine {cosine:.3f})")
    sums = tuple(float(part.double().sum()) for p in model.weights for part in parts_of(p.grad))
    digest = torch.tensor([hash(sums)], dtype=torch.int64)
    seen = [torch.zeros_like(digest) for _ in pools]
    dist.all_gather(seen, digest)
    if any(int(other) != int(digest) for other in seen):
        raise SystemExit(f"{spec}: the ranks hold different gradients")
    return f"cosine {cosine:.4f}, largest error {worst:.1e}"


def codec_seconds(spec: str, storage: list[torch.Tensor], pool: torch.Tensor) -> list[float]:
    """What the codec's own calls take in some steps, on each rank's one core, on all ranks at once."""
    work = CodecWork(spec, [tensor.shape for tensor in storage], dist.get_world_size())

    def write(gradient: np.ndarray, index: int) -> None:
        flat = torch.from_numpy(gradient)
        flat.copy_(write_gradient(flat.shape, pool, offset_of(index)))

    seconds = []
    for _ in range(CODEC_STEPS):
        dist.barrier()
        seconds += slowest(work.step(write))
    return seconds[CODEC_STEPS_BEFORE:]


def slowest(*values: float) -> list[float]:
    """The largest of each over the ranks."""
    largest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def traffic() -> tuple[int, int]:
    sessions = [held.session for held in WORLDS.values()]
    counters = [session.counters() for session in sessions if session is not None]
    return sum(each["sent_bytes"] for each in counters), sum(each["received_bytes"] for each in counters)


def own_address() -> str:
    """IPv4 address of the interface that gloo was told to use."""
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode())
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])


def stream_goodput(rank: int, size: int) -> float:
    """Bytes per second of one TCP stream of `size` bytes from rank 0's host to rank 1's, while everybody else rests.

    `size` is what an uncompressed step puts on a link: of a shorter stream, the burst that the link's shaper lets pass
    at once is a larger share than of the step.
    """
    listener = socket.create_server((own_address(), 0)) if rank == 1 else None
    where: list[Any] = [listener.getsockname() if listener is not None else None]
    dist.broadcast_object_list(where, 1)
    rate = torch.zeros(1, dtype=torch.float64)
    if rank == 1 and listener is not None:
        with listener, listener.accept()[0] as connection:
            buffer = bytearray(1 << 20)
            received, start = 0, 0.0
            while count := connection.recv_into(buffer):
                if start == 0.0:
                    start = time.perf_counter()
                    continue
                received += count
            rate[0] = received / (time.perf_counter() - start)
    elif rank == 0:
        with socket.create_connection(tuple(where[0])) as connection:
            block = bytes(1 << 20)
            for begin in range(0, size, len(block)):
                connection.sendall(block[: size - begin])
    dist.broadcast(rate, 1)
    return float(rate[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--contenders", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--topology", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    WORLDS["mpi"] = default._current
    hvd.init(transport="mpi")
    rank, size = hvd.rank(), hvd.size()
    dist.init_process_group("gloo", init_method=os.environ["STEP_TIME_RENDEZVOUS"], rank=rank, world_size=size)

    storage = [torch.empty(shape) for shape in MODELS[arguments.model]()]  # never touched, so it takes no memory
    pool = pool_of(rank)
    specs = arguments.contenders.split(";")
    codecs = {spec: codec_seconds(spec.partition(":")[2], storage, pool) for spec in specs if spec.startswith("casync")}
    wire_bytes = 2 * (size - 1) * sum(4 * tensor.numel() for tensor in storage) // size
    steps = {spec: contender(spec, storage, pool, arguments.topology) for spec in specs}
    checks: dict[str, str] = {}
    for turn in range(TURNS_BEFORE):  # negotiation, bucket rebuild, and memory until it is all there
        for spec, (step, model) in steps.items():
            step()
            if spec != "none" and turn == 0:
                checks[spec] = check(spec, model)
            release(model)
    seconds: dict[str, list[float]] = {spec: [] for spec in specs}
    cpu: dict[str, list[float]] = {spec: [] for spec in specs}
    carried: dict[str, int] = {}  # by the busiest direction of the busiest link
    goodput: list[float] = []
    for _ in range(arguments.rounds):
        goodput.append(stream_goodput(rank, wire_bytes))
        for spec, (step, model) in steps.items():
            wall, busy, carried[spec] = timed(step, model)
            seconds[spec].append(wall)
            cpu[spec].append(busy)
    if rank == 0:
        result = {"seconds": seconds, "cpu": cpu, "codecs": codecs, "carried": carried, "goodput": goodput}
        with open(arguments.out, "w") as file:
            json.dump({**result, "checks": checks, "size": size}, file)
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    for held in WORLDS.values():
        default._current = held
        hvd.shutdown()


def release(model: Model) -> None:
    for parameter in model.weights:
        parameter.grad = None


if __name__ == "__main__":
    main()

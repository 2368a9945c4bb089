"""One rank of the comparison of plans, started by `python -m benchmarks.whole_models`.

`save` settles what `auto` and `covap` find, each in a session of its own, and writes a plan file of each. `run` has all
contenders take turns in one session, which is given those files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import casync.torch as hvd
import torch
import torch.distributed as dist

from benchmarks.auto.worker import give_back_memory, of_label, settled
from benchmarks.step_time.worker import Model, Step, ours, pool_of, release, slowest
from benchmarks.whole_models.contenders import Contender
from casync.bench.simulate import gradients_of
from casync.plan.plans import Plans, read_plans, write_plans

COVAP_STEPS = 24  # until covap has its interval
BEFORE = 2  # turns that are not measured


class Sleeping(Model):
    """A model whose backward pass also sleeps, as if a device computed it: an even part before each gradient."""

    def __init__(self, storage: list[torch.Tensor], pool: torch.Tensor, backward_s: float) -> None:
        super().__init__(storage, pool)
        for parameter in self.weights:
            parameter.register_hook(lambda gradient: time.sleep(backward_s / len(storage)))


def step_of(label: str, model: Model, compression: str, topology: str) -> Step:
    """A step of `model`; without a codec's name nothing is sent."""
    if not compression:
        return lambda: model().backward()
    return ours(label, model, compression, topology)


def turn_s(step: Step, model: Model, steps: int) -> float:
    """Seconds of a step, the mean of a turn, on the slowest rank."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
        release(model)
    return slowest((time.perf_counter() - begin) / steps)[0]


def save(contenders: list[Contender], new_model: Callable[[], Model], folder: Path, seconds: float) -> None:
    """Have each contender that settles settle, and write its plans, on rank 0."""
    for one in contenders:
        model = new_model()
        if one.compression.startswith("auto"):
            plans = settled(one.label, one.compression, model, time.perf_counter() + seconds)
            assert plans is not None, f"{one.label} has not settled in {seconds:.0f} s"
        else:
            hvd.init(plan_file="")
            step = step_of(one.label, model, one.compression, one.topology)
            for _ in range(COVAP_STEPS):
                step()
                release(model)
            plans = of_label(one.label, model)
            hvd.shutdown()
            give_back_memory()
        if dist.get_rank() == 0:
            write_plans(folder / f"{one.label}.json", plans)
        dist.barrier()


def run(
    contenders: list[Contender], new_model: Callable[[], Model], folder: Path, rounds: int, turn: int
) -> dict[str, list[float]]:
    """Seconds of a step by contender, in each round. Those that have a plan file follow it."""
    together = folder / "together.json"
    if dist.get_rank() == 0:
        files = [folder / f"{one.label}.json" for one in contenders]
        found = Plans({name: plan for file in files if file.exists() for name, plan in read_plans(file).items()})
        write_plans(together, found)
    dist.barrier()
    hvd.init(plan_file=str(together))
    models = {one.label: new_model() for one in contenders}
    steps = {}
    for one in contenders:
        is_planned = (folder / f"{one.label}.json").exists()
        compression = "auto" if is_planned else one.compression
        steps[one.label] = step_of(one.label, models[one.label], compression, one.topology)
    for _ in range(BEFORE):
        for label, step in steps.items():
            turn_s(step, models[label], turn)
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(rounds):
        for label, step in steps.items():
            seconds[label].append(turn_s(step, models[label], turn))
    hvd.shutdown()
    return seconds


HELD_BYTES = 16 << 20
HELD_STEPS = 64


def held() -> dict[str, list[float]]:
    """Seconds in which a step holds back a byte of a gradient that waits, the median of steps that send nothing, and in
    which a processor copies one, while all ranks do so.
    """
    hvd.init(partition_bytes=2 * HELD_BYTES)  # so it is no shards, of which some go in each step
    gradient, copy = torch.ones(HELD_BYTES // 4), torch.empty(HELD_BYTES // 4)
    waiting, copying = [], []
    for _ in range(HELD_STEPS):
        copying.append(seconds_of(lambda: copy.copy_(gradient)))
        waiting.append(seconds_of(lambda: hvd.allreduce_(copy, name="held", compression="covap(none, interval=8)")))
    hvd.shutdown()
    found = {"held_s_per_byte": waiting, "copy_s_per_byte": copying}
    return {what: [statistics.median(slowest(*seconds)) / HELD_BYTES] for what, seconds in found.items()}


def seconds_of(work: Callable[[], object]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("save", "run", "held"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--contenders", required=True, help="as JSON")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--backward", type=float, default=0.0, help="seconds that the backward pass sleeps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=int, default=8, help="steps of a contender one after the other")
    parser.add_argument("--seconds", type=float, default=120.0, help="that a contender may take to settle")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["CASYNC_RANK"]), int(os.environ["CASYNC_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["STEP_TIME_RENDEZVOUS"], rank=rank, world_size=size)
    contenders = [Contender(**one) for one in json.loads(given.contenders)]
    shapes = gradients_of(given.model)
    storage = [torch.empty(shape) for shape in shapes]  # never touched, so it takes no memory
    pool = pool_of(rank)
    found: dict[str, list[float]] = {}

    def new_model() -> Model:
        return Sleeping(storage, pool, given.backward) if given.backward else Model(storage, pool)

    if given.what == "held":
        found = held()
    elif given.what == "save":
        save(contenders, new_model, given.folder, given.seconds)
    else:
        found = run(contenders, new_model, given.folder, given.rounds, given.turn)
    if rank == 0:
        given.out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

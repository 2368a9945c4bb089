"""One rank of the comparison of `auto` with its candidates, started by `python -m benchmarks.auto`.

Each `auto` first settles in a session of its own, which is how a job uses it. Then all contenders take turns in one
session, in which each `auto` has the plans that it settled on. Steps are those of benchmarks/step_time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict

import casync.torch as hvd
import torch
import torch.distributed as dist

from benchmarks.auto.cases import MODELS_AND_SMALL, Case, rounds_in, turns_of
from benchmarks.step_time.worker import Model, Step, ours, pool_of, release, slowest, timed
from casync.bench.ways import own_plans
from casync.plan.plans import GradientPlan
from casync.session.default import session

TURNS_BEFORE = 2  # names are negotiated, and memory is taken
AUTO_SHARE = 0.75  # of the time, for all that settle
CHECKED_EVERY = 6  # steps: asking for plans takes time that would count
MOST_STEPS = 48  # until auto has settled; it promises 30 after its warm-up

Plans = Mapping[str, GradientPlan]


def settled(label: str, spec: str, model: Model, deadline: float) -> Plans | None:
    """The plans that `auto` stays with; None if it has not settled by the deadline. Alike on all ranks."""
    hvd.init(plan_file="")
    step = ours(label, model, spec, "auto")
    try:
        for _ in range(0, MOST_STEPS, CHECKED_EVERY):
            for _ in range(CHECKED_EVERY):
                step()
                release(model)
            plans = of_label(label, model)
            waits, now = slowest(float(not has_settled(plans)), time.perf_counter())
            if not waits:
                return plans
            if now > deadline:
                break
        return None
    finally:
        hvd.shutdown()
        give_back_memory()


def give_back_memory() -> None:
    """Of what this session has kept. Freed memory is kept for the next step (MALLOC in step_time/job.py), by the arena
    that it is of: what one session's threads have freed, the next one's need not find.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def has_settled(plans: Plans) -> bool:
    """Whether gradients were planned by what was measured, and nothing is compared any more. A rank may hear of it a
    step after another.
    """
    return any(plan.epoch > 0 for plan in plans.values()) and not any(plan.on_trial for plan in plans.values())


def of_label(label: str, model: Model) -> Plans:
    names = [f"{label}.{name}" for name, _ in model.named_parameters()]
    return own_plans(hvd.plans(), "", names)


def take_turns(steps: Mapping[str, tuple[Step, Model]], end: float) -> dict[str, list[float]]:
    """Seconds of each measured step by label; as many rounds as fit in until `end`."""
    for _ in range(TURNS_BEFORE):
        for step, model in steps.values():
            step()
            release(model)
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    turns = dict.fromkeys(steps, 1)

    def one_round() -> None:
        for label, (step, model) in steps.items():
            seconds[label] += [timed(step, model)[0] for _ in range(turns[label])]

    one_round()
    (late,) = slowest(time.perf_counter() - end)
    longest = max(each[0] for each in seconds.values())
    turns = {label: turns_of(each[0], longest) for label, each in seconds.items()}
    took = sum(2 * turns[label] * each[0] for label, each in seconds.items())  # each turn is of two steps
    for _ in range(rounds_in(-late, took)):
        one_round()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--link", required=True)
    parser.add_argument("--codecs", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    end = time.perf_counter() + arguments.seconds
    torch.set_num_threads(1)
    rank, size = int(os.environ["CASYNC_RANK"]), int(os.environ["CASYNC_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["STEP_TIME_RENDEZVOUS"], rank=rank, world_size=size)
    case = Case(arguments.model, arguments.link, tuple(filter(None, arguments.codecs.split(";"))))
    contenders = case.contenders()
    storage = [torch.empty(shape) for shape in MODELS_AND_SMALL[case.model]()]  # never touched, so it takes no memory
    pool = pool_of(rank)

    given: dict[str, Plans] = {}
    autos = [label for label in contenders if label.startswith("auto")]
    began = time.perf_counter()
    for number, label in enumerate(autos, 1):
        deadline = began + AUTO_SHARE * (end - began) * number / len(autos)
        plans = settled(label, contenders.pop(label), Model(storage, pool), deadline)
        if plans is not None:
            given[label] = plans
            contenders[label] = "auto"

    hvd.init(plan_file="")
    session().fix_plans({name: plan for plans in given.values() for name, plan in plans.items()})
    models = {label: Model(storage, pool) for label in contenders}
    steps = {label: (ours(label, model, contenders[label], "auto"), model) for label, model in models.items()}
    seconds = take_turns(steps, end)
    settled_on = {label: [asdict(plan) for plan in of_label(label, models[label]).values()] for label in given}
    hvd.shutdown()
    if rank == 0:
        with open(arguments.out, "w") as file:
            json.dump({"seconds": seconds, "plans": settled_on}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Plans of whole models on netlab hosts, beside what was predicted of them.

    python -m benchmarks.whole_models saved --rate 1gbit --ranks-per-host 2
    python -m benchmarks.whole_models lists --rate 1gbit --ranks-per-host 2
    python -m benchmarks.whole_models covap
    python -m benchmarks.whole_models held
    python -m benchmarks.whole_models show --page docs/benchmarks.md

`saved`: what `auto` and `covap(fp16)` find for ResNet50 is saved as plan files, which other jobs are given then, with
two ranks on each of four hosts. `lists`: topk by lists of phases that have no name, and by topologies that have.
`routes`: three codecs by topologies that have a name.
`covap`: how much of the communication a backward pass does not hide that sleeps, where communication takes 0.5 to 4
times as long. `held`: what a byte that waits costs. Needs root (network namespaces). Writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.auto.verdicts import predicted_step
from benchmarks.fidelity import page
from benchmarks.netlab import Netlab
from benchmarks.step_time.job import figures_of
from benchmarks.whole_models import tables
from benchmarks.whole_models.contenders import ALONE, BESIDE, LISTS, ROUTES, SAVED, Contender, sleeping
from casync.bench.simulate import gradients_of, predict
from casync.plan.plans import read_plans

FIGURES = Path("docs/figures/whole_models.json")
HOSTS = 4
SLEEPER = "40x262144"  # gradients of 1 MiB
RATIOS = (0.5, 1.0, 2.0, 3.0, 4.0)


def job(
    lab: Netlab, ranks: int, what: str, model: str, contenders: Sequence[Contender], folder: str, *words: str
) -> dict[str, list[float]]:
    """One job of the worker."""
    text = json.dumps([asdict(one) for one in contenders])
    words = (what, "--model", model, "--contenders", text, "--folder", folder, *words)
    return figures_of(lab, ranks, "benchmarks.whole_models.worker", words, timeout=1200)


def saved(model: str, rate: str, per_host: int, rounds: Sequence[str]) -> dict[str, Any]:
    """Seconds of a step by saved plans and beside them, and what was predicted of the plans."""
    ranks = HOSTS * per_host
    with Netlab(HOSTS, rate) as lab, tempfile.TemporaryDirectory() as folder:
        goodput = lab.goodput() / 8
        job(lab, ranks, "save", model, SAVED, folder)
        seconds = job(lab, ranks, "run", model, (*SAVED, *BESIDE), folder, *rounds)
        plans = {one.label: read_plans(Path(folder) / f"{one.label}.json") for one in SAVED}
    interval = max(plan.period for plan in plans["covap"].values())
    in_turns = predict(
        gradients_of(model), nodes=HOSTS, ranks_per_node=per_host, rate=goodput,
        compression=f"covap(fp16, interval={interval})", backward_s=statistics.median(seconds[ALONE]),
    )  # fmt: skip
    predicted = {"auto": predicted_step([asdict(plan) for plan in plans["auto"].values()]), "covap": in_turns["step_s"]}
    return {"seconds": seconds, "predicted": predicted, "interval": interval, "goodput": goodput}


def by_topology(
    contenders: Sequence[Contender], model: str, rate: str, per_host: int, rounds: Sequence[str]
) -> dict[str, Any]:
    """Seconds of a step by contender, and what the simulator says."""
    with Netlab(HOSTS, rate) as lab, tempfile.TemporaryDirectory() as folder:
        goodput = lab.goodput() / 8
        seconds = job(lab, HOSTS * per_host, "run", model, contenders, folder, *rounds)

    def simulated(one: Contender) -> float:
        found = predict(
            gradients_of(model), nodes=HOSTS, ranks_per_node=per_host, rate=goodput, topology=one.topology,
            compression=one.compression, backward_s=statistics.median(seconds[ALONE]),
        )  # fmt: skip
        return float(found["step_s"])

    predicted = {one.label: simulated(one) for one in contenders if one.compression}
    return {"seconds": seconds, "predicted": predicted, "goodput": goodput}


def covap(rate: str, per_host: int, rounds: Sequence[str]) -> dict[str, Any]:
    """Seconds of a step by ratio of communication to the backward pass, and those of a byte that waits."""
    gradients, ranks = gradients_of(SLEEPER), HOSTS * per_host
    found: dict[str, Any] = {"ratios": {}}
    with Netlab(HOSTS, rate) as lab:
        goodput = lab.goodput() / 8
        communication_s = predict(gradients, nodes=HOSTS, ranks_per_node=per_host, rate=goodput, topology="ps")[
            "step_s"
        ]
        for ratio in RATIOS:
            with tempfile.TemporaryDirectory() as folder:
                contenders = sleeping(max(1, round(ratio)))
                sleep = ("--backward", str(communication_s / ratio))
                job(lab, ranks, "save", SLEEPER, contenders[-1:], folder, *sleep)
                seconds = job(lab, ranks, "run", SLEEPER, contenders, folder, *rounds, *sleep)
                plans = read_plans(Path(folder) / f"{contenders[-1].label}.json")
                interval = max(plan.period for plan in plans.values())
                found["ratios"][str(ratio)] = {"seconds": seconds, "interval": interval}
    return {**found, "communication_s": communication_s}


def held(rate: str, per_host: int) -> dict[str, float]:
    """Seconds in which a step holds back a byte, and copies as much beside that."""
    with Netlab(HOSTS, rate) as lab, tempfile.TemporaryDirectory() as folder:
        found = job(lab, HOSTS * per_host, "held", SLEEPER, (), folder)
    return {what: seconds[0] for what, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_models", description=__doc__)
    parser.add_argument("what", choices=("saved", "lists", "routes", "covap", "held", "show"))
    parser.add_argument("--model", default="resnet50", help="as casync simulate has it")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=int, default=8, help="steps one after the other, a multiple of covap's interval")
    parser.add_argument("--json", type=Path, default=FIGURES)
    parser.add_argument("--page", type=Path, help="put the tables there")
    given = parser.parse_args()
    kept: dict[str, Any] = json.loads(given.json.read_text()) if given.json.exists() else {}
    if given.what != "show":
        rounds = ("--rounds", str(given.rounds), "--turn", str(given.turn))
        sizes = (given.rate, given.ranks_per_host, rounds)
        if given.what == "saved":
            found = saved(given.model, *sizes)
        elif given.what == "covap":
            given.model, found = SLEEPER, covap(*sizes)
        elif given.what == "held":
            given.model, found = "16 MiB", held(given.rate, given.ranks_per_host)
        else:
            found = by_topology(LISTS if given.what == "lists" else ROUTES, given.model, *sizes)
        found |= {"machine": machine.describe(), "revision": machine.revision()}
        of_what = kept.setdefault(given.what, {})
        of_what[f"{given.model}, {given.rate}, {given.ranks_per_host} a host"] = found
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    for what, table in tables.of(kept).items():
        print(f"{what}\n\n{table}\n")
        if given.page:
            page.write(given.page, f"whole models {what}", table)


if __name__ == "__main__":
    main()

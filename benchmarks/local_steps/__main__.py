"""What rounds of DiLoCo take on slow links, and what `casync simulate` predicts for them.

    python -m benchmarks.local_steps --rate 100mbit --rtt 50 --numel 25e6

Four emulated hosts. A round is `--every` steps that compute for `--compute` seconds in all, by sleeping, and the
synchronisation. `blocking:CODEC` waits for it. `streaming:CODEC` cuts the model into fragments, and goes on computing
for `--delay` steps meanwhile. `every:CODEC` averages gradients in each step, while the backward pass goes on; `ddp`
does so over gloo, after it. `torchft` makes the rounds of `blocking:none` with torchft's DiLoCo over gloo, where it is
installed (`pip install torchft`). "utilisation" is the part of a round in which a rank computes. "wire" is the least
time that the bytes of the busiest rank need at the goodput of one TCP stream in the same lab. The seconds of codecs and
of the outer step (with the differences that are sent) are those of a processor. The prediction knows the goodput of
links that are busy both ways. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.netlab import Distance, Netlab
from benchmarks.step_time.job import figures_of
from casync.bench.simulate import predict, predict_round

CONTENDERS = "blocking:none;blocking:bf16;blocking:onebit;streaming:onebit;ddp"
HOSTS = 4


def predicted(figures: dict[str, Any], contender: str, goodput: float, given: argparse.Namespace) -> float | None:
    """The seconds of a round, as `casync simulate` has them for links of this goodput; it knows nothing of torchft."""
    if contender == "torchft":
        return None
    way, _, codec = contender.partition(":")
    rows, columns = figures["shape"]
    count = figures["numel"] // (rows * columns)
    fragments = given.fragments if way == "streaming" else 1
    how: dict[str, Any] = {"nodes": HOSTS, "rate": goodput / 8, "latency_s": given.rtt / 2e3}
    gradients = [(rows, columns)] * (count // fragments)
    if way == "ddp":
        return given.compute + given.every * predict(gradients, topology="ring", **how)["step_s"]
    if way == "every":
        step = predict(gradients, compression=codec, backward_s=given.compute / given.every, **how)["step_s"]
        return float(given.every * step)
    hidden = (given.delay - 1) * given.compute / given.every if way == "streaming" else 0.0
    return given.compute + fragments * max(0.0, predict_round(gradients, compression=codec, **how) - hidden)


def both_ways(lab: Netlab) -> float:
    """The goodput of a stream where each host sends to the next at once: what a round has, whose bytes go both ways."""
    hosts = [f"h{number}" for number in range(1, HOSTS + 1)]
    with ThreadPoolExecutor(HOSTS) as pool:
        found = pool.map(lambda place: lab.goodput(hosts[place], hosts[place - 1], seconds=8.0, skip=3.0), range(HOSTS))
        return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_steps", description=__doc__)
    parser.add_argument("--numel", type=float, action="append", help="numbers of the model (25e6)")
    parser.add_argument("--contenders", default=CONTENDERS, help="separated by ';'")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--rtt", type=float, default=50.0, help="ms")
    parser.add_argument("--every", type=int, default=20, help="steps of a round")
    parser.add_argument("--compute", type=float, default=20.0, help="seconds in which a round computes")
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--delay", type=int, default=4, help="steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1500.0)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/local_steps.json"))
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": machine.describe(), "revision": machine.revision(), "settings": vars(given)}
    results["settings"] = {key: value for key, value in vars(given).items() if key != "json"}
    table = Table(title=f"{HOSTS} hosts, {given.rate}, {given.rtt:g} ms; {given.compute:g} s of computing a round")
    for column in (
        "numbers",
        "contender",
        "round",
        "predicted",
        "utilisation",
        "waited",
        "wire",
        "codec",
        "outer step",
        "sent",
    ):
        table.add_column(column, justify="left" if column == "contender" else "right", no_wrap=True)
    with Netlab(hosts=HOSTS, rate=given.rate, distance=Distance.of(given.rtt, 0.0)) as lab:
        goodput = lab.goodput(seconds=6.0, skip=2.0)
        results["goodput"], results["goodput_both_ways"] = goodput, both_ways(lab)
        for numel in given.numel or (25e6,):
            for contender in given.contenders.split(";"):
                words = [
                    f"--{key}={getattr(given, key)}" for key in ("every", "compute", "rounds", "fragments", "delay")
                ]
                words += [f"--numel={numel}", f"--contender={contender}"]
                told = figures_of(lab, HOSTS, "benchmarks.local_steps.worker", words, timeout=given.timeout)
                slowest = told["slowest"]
                slowest["predicted"] = predicted(slowest, contender, results["goodput_both_ways"], given)
                slowest["wire"] = slowest["sent"] * 8 / goodput if "sent" in slowest else None
                results.setdefault("figures", {})[f"{numel:g} {contender}"] = told
                given.json.parent.mkdir(parents=True, exist_ok=True)
                given.json.write_text(json.dumps(results, indent=1))
                table.add_row(*cells(numel, contender, slowest, given))
    Console(width=150).print(table)


def cells(numel: float, contender: str, figures: dict[str, Any], given: argparse.Namespace) -> list[str]:
    def seconds(key: str) -> str:
        return f"{figures[key]:.2f} s" if figures.get(key) is not None else ""

    return [
        f"{numel:g}",
        contender,
        seconds("seconds"),
        seconds("predicted"),
        f"{given.compute / figures['seconds']:.3f}",
        seconds("exposed"),
        seconds("wire"),
        seconds("codec"),
        seconds("main_cpu"),
        f"{figures['sent'] / 2**20:.1f} MiB" if "sent" in figures else "",
    ]


if __name__ == "__main__":
    main()

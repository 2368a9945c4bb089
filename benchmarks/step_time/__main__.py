"""Times one data-parallel step on netlab hosts: CaSync beside DDP/gloo, taking turns in one run.

    python -m benchmarks.step_time --models resnet50,bert-base --rounds 5

Prints, per model and contender, the median seconds of a step (the slowest rank's), the ratio to DDP, the CPU seconds of
the busiest rank, and the bytes that the busiest direction of a link carried. Beside them what a step cannot undercut:
the least time that the uncompressed bytes take at the goodput that one TCP stream reached in the same rounds ("of
limit"); and for a contender of ours "wire s", the same for the bytes that it did carry, and "codec s", the codec's own
work for its gradients on a rank's one core, measured in the same processes, on all ranks at once. "step / bound" is its
step over the larger of the two, once as they are, and once with the backward pass (`none`) added to the codec, which
has the same core. Needs root (network namespaces). Writes the figures as JSON.

    python -m benchmarks.step_time --models bert-base --contenders "none;ddp+fp16;casync:dgc(ratio=0.001)"
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.netlab import Distance, Netlab
from benchmarks.step_time import job
from benchmarks.step_time.limits import wire_bytes
from casync.bench.reference_models import MODELS, mebibytes

CONTENDERS = "none;ddp;ddp:100;ddp+fp16;casync:none;casync:fp16;casync:onebit;casync:terngrad(bits=2)"


def show(name: str, result: dict, console: Console) -> None:
    seconds: dict[str, list[float]] = result["seconds"]
    size = result["size"]
    goodput = statistics.median(result["goodput"])
    limit = wire_bytes(name, size) / goodput
    baselines = [spec for spec in seconds if spec.startswith("ddp") and "fp16" not in spec]
    ddp = min((statistics.median(seconds[spec]) for spec in baselines), default=None)
    fp16 = statistics.median(seconds["ddp+fp16"]) if "ddp+fp16" in seconds else None
    table = Table(
        title=f"{name}: {mebibytes(MODELS[name]()):.0f} MiB, {size} hosts, "
        f"one TCP stream {goodput * 8 / 1e6:.0f} Mbit/s, uncompressed limit {limit:.3f} s"
    )
    columns = ("contender", "median s", "min", "max", "DDP / it", "fp16 hook / it", "of limit", "CPU s", "carried MiB")
    for column in (*columns, "wire s", "codec s", "step / bound", "with backward"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    backward = statistics.median(seconds["none"]) if "none" in seconds else None
    for spec, times in seconds.items():
        median = statistics.median(times)
        bounds = [""] * 4
        if spec in result["codecs"]:
            link, codec = result["carried"][spec] / goodput, statistics.median(result["codecs"][spec])
            bounds = [f"{link:.3f}", f"{codec:.3f}", f"{median / max(link, codec):.2f}"]
            bounds.append(f"{median / max(link, codec + backward):.2f}" if backward is not None else "")
        table.add_row(
            spec,
            f"{median:.3f}",
            f"{min(times):.3f}",
            f"{max(times):.3f}",
            f"{ddp / median:.2f}" if ddp else "",
            f"{fp16 / median:.2f}" if fp16 else "",
            f"{limit / median:.3f}" if spec != "none" else "",
            f"{statistics.median(result['cpu'][spec]):.2f}",
            f"{result['carried'][spec] / 2**20:.1f}" if spec.startswith("casync") else "",
            *bounds,
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_time", description=__doc__)
    parser.add_argument("--models", default="resnet50,bert-base", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--contenders", default=CONTENDERS, help="separated by ';'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rtt", type=float, help="ms of a round trip between hosts, which are distant then")
    parser.add_argument("--loss", type=float, default=0.0, help="part of the packets that is lost, with --rtt")
    parser.add_argument("--topology", default="auto")
    parser.add_argument("--timeout", type=float, default=1500.0)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/step_time.json"))
    arguments = parser.parse_args()
    console = Console(width=160)
    results = {}
    distance = Distance.of(arguments.rtt, arguments.loss)
    with Netlab(hosts=arguments.hosts, rate=arguments.rate, distance=distance) as lab:
        for name in arguments.models.split(","):
            results[name] = job.run(
                lab,
                name,
                hosts=arguments.hosts,
                contenders=arguments.contenders,
                rounds=arguments.rounds,
                topology=arguments.topology,
                timeout=arguments.timeout,
            )
            show(name, results[name], console)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(results, indent=1))
    console.print(f"figures: {arguments.json}")


if __name__ == "__main__":
    main()

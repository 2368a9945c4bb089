"""`casync simulate`: how long a data-parallel step would take, predicted in virtual time.

The engine that runs real jobs runs here over a modelled network and modelled processors, with sizes only:

    casync simulate --nodes 16 --gradients bert-base --rate 1gbit --codec onebit
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from casync import errors
from casync._constants import COORDINATORS, TOPOLOGIES
from casync.bench import interval
from casync.bench.reference_models import MODELS
from casync.codecs.specs import CompressionLike
from casync.config.settings import Config
from casync.plan.topology import topology_of
from casync.relaxed import head

if TYPE_CHECKING:
    from casync._core import Simulation

__all__ = [
    "build_parser",
    "gradients_of",
    "main",
    "parse_duration",
    "parse_rate",
    "parse_seconds",
    "predict",
    "predict_round",
    "share",
]

_COPIES_OF_A_ROUND = 10
"""A round takes as long in memory as so many copies of the parameters: it computes the change and its length, the outer
step and the new parameters."""
_RATES = {"": 1.0, "bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def _with_unit(text: str, units: dict[str, float], kind: str) -> float:
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", text.strip().lower().removesuffix("/s"))
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise argparse.ArgumentTypeError(f"{text!r} is no {kind}; write a number and one of {known}")
    return float(match[1]) * units[match[2]]


def parse_rate(text: str) -> float:
    """Bytes per second of a rate such as `1gbit`, `25gbit` or `110MB/s`."""
    rate = _with_unit(text, _RATES, "rate")
    if rate <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a link needs a rate above 0")
    return rate


def parse_seconds(text: str) -> float:
    """Seconds of a time such as `50us`, `0.2s` or `3ms`."""
    return _with_unit(text, _TIMES, "time")


def parse_duration(text: str) -> float:
    """Seconds of a time, as `parse_seconds` reads it, that is above 0."""
    seconds = parse_seconds(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time above 0")
    return seconds


def share(text: str) -> float:
    """A part of the time, such as `0.95`."""
    try:
        part = float(text)
    except ValueError:
        part = math.nan
    if not 0 < part < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0 and below 1")
    return part


def gradients_of(text: str) -> list[tuple[int, int]]:
    """Rows and columns of each gradient: a model of table 6, or sizes such as `400x65536` or `1000,2048x512,7`."""
    if text in MODELS:
        shapes = MODELS[text]()
        return [(shape[0], math.prod(shape[1:])) for shape in shapes]
    gradients: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:(\d+)x)?(\d+)", part.strip())
        if match is None:
            known = ", ".join(MODELS)
            raise argparse.ArgumentTypeError(
                f"{text!r}: neither a model ({known}) nor sizes such as 400x65536 (COUNTxELEMENTS)"
            )
        gradients += [(int(match[2]), 1)] * int(match[1] or 1)
    return gradients


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = argparse.ArgumentParser(
        prog="casync simulate",
        description="Predict the time of a data-parallel step in virtual time. Nothing is measured: codecs cost what "
        "they do on one core that copies 8 GB/s.",
    )
    parser.add_argument("--nodes", type=int, default=4, help="hosts (4)")
    parser.add_argument("--ranks-per-node", type=int, default=1, help="ranks on each host (1)")
    parser.add_argument(
        "--gradients",
        type=gradients_of,
        default="resnet50",
        metavar="MODEL|SIZES",
        help=f"{', '.join(MODELS)}, or 400x65536",
    )
    parser.add_argument("--rate", type=parse_rate, default="1gbit", help="of a host's link, each way (1gbit)")
    parser.add_argument("--latency", type=parse_seconds, default="50us", help="between hosts (50us)")
    parser.add_argument("--codec", default="none", help="compression as a script names it (none)")
    parser.add_argument(
        "--topology",
        action="append",
        help=f"only this one: auto, {', '.join(TOPOLOGIES)} or a JSON file; may be repeated (all but direct)",
    )
    parser.add_argument("--coordinator", choices=COORDINATORS, default=Config.coordinator)
    parser.add_argument(
        "--backward", type=parse_seconds, default="0s", help="time over which the gradients become ready (0s)"
    )
    size = Config.partition_bytes  # as a session plans
    parser.add_argument("--partition-bytes", type=float, default=size, help=f"limit of a partition's payload ({size})")
    parser.add_argument("--workers", type=int, default=1, help="processors per rank that encode and decode (1)")
    parser.add_argument("--seed", type=int, default=1)
    often = parser.add_argument_group(
        "how often to send",
        "Also compare none, fp16, onebit and --codec: in every step, and in rounds of DiLoCo or local SGD.",
    )
    often.add_argument("--compute", type=parse_duration, metavar="TIME", help="time that a step computes, e.g. 500ms")
    often.add_argument(
        "--utilisation",
        type=share,
        default=0.95,
        metavar="U",
        help="part of the time that a rank is to compute (0.95)",
    )
    return parser


def predict(
    gradients: Sequence[tuple[int, int]],
    *,
    nodes: int = 4,
    ranks_per_node: int = 1,
    rate: float = _RATES["gbit"],
    latency_s: float = 50e-6,
    compression: CompressionLike = "none",
    topology: str = "auto",
    coordinator: str = "local",
    backward_s: float = 0.0,
    partition_bytes: float = Config.partition_bytes,
    worker_threads: int = 1,
    seed: int = 1,
) -> Simulation:
    """Return what one step of synchronisation would take: `step_s` in seconds, `sent_bytes` of the busiest rank.

    `gradients` are the rows and columns of each gradient, in the order in which they become ready; `rate` is that of a
    host's link in bytes per second, each way, and `compression` a codec as a script names it. The defaults are those of
    `casync simulate`. Raises `InvalidArgumentError` for what no session would accept. Any thread may call.
    """
    from casync import _core  # the compiled core, not needed for --help
    from casync.codecs.specs import codec_text

    return _core.simulate(
        gradients=gradients,
        host_of=[node for node in range(nodes) for _ in range(ranks_per_node)],
        rate=rate,
        latency_s=latency_s,
        compression=codec_text(compression),
        topology=topology_of(topology),
        coordinator=coordinator,
        backward_s=backward_s,
        partition_bytes=partition_bytes,
        worker_threads=worker_threads,
        seed=seed,
    )


def predict_round(gradients: Sequence[tuple[int, int]], *, copy_rate: float = 8e9, **how: Any) -> float:
    """Return the seconds of a round of DiLoCo or local SGD that a rank waits for: the ranks agree in a small sum, and
    then what these parameters have changed by goes its way, all at once. Before and after that memory is read and
    written: a processor copies `copy_rate` bytes per second. Other arguments are those of `predict`.
    """
    ranks = how.get("nodes", 4) * how.get("ranks_per_node", 1)
    agreed = predict([(2 * head.length(ranks), 1)], **{**how, "compression": "none", "backward_s": 0.0})
    memory_s = _COPIES_OF_A_ROUND * 4 * sum(rows * cols for rows, cols in gradients) / copy_rate
    return agreed["step_s"] + predict(gradients, **{**how, "backward_s": 0.0})["step_s"] + memory_s


def main(argv: Sequence[str]) -> int:
    """Run `casync simulate`; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    ranks = arguments.nodes * arguments.ranks_per_node
    count = len(arguments.gradients)
    size = sum(rows * cols for rows, cols in arguments.gradients) * 4 / 2**20
    sys.stdout.write(
        f"{ranks} ranks on {arguments.nodes} hosts, {count} gradients of {size:.2f} MiB, codec {arguments.codec}\n"
    )
    sys.stdout.write(f"{'topology':<10} {'step':>12} {'sent by the busiest rank':>26}   simulated in\n")
    carried = 0
    for topology in arguments.topology or ("auto", "ps", "ring", "two_level"):
        begin = time.monotonic()
        try:
            step = predict(arguments.gradients, compression=arguments.codec, **_how(arguments, topology))
        except errors.InvalidArgumentError as error:
            sys.stdout.write(f"{topology:<10} {error}\n")
            continue
        carried += 1
        took = time.monotonic() - begin
        sys.stdout.write(
            f"{topology:<10} {step['step_s'] * 1e3:>9.2f} ms {step['sent_bytes'] / 2**20:>22.2f} MiB   {took:.2f} s\n"
        )
    if carried and arguments.compute is not None:
        _say_how_often(arguments)
    return 0 if carried else 1


def _how(arguments: argparse.Namespace, topology: str) -> dict[str, Any]:
    """The arguments of `predict` that a command line has for every codec."""
    return {
        "nodes": arguments.nodes, "ranks_per_node": arguments.ranks_per_node, "rate": arguments.rate,
        "latency_s": arguments.latency, "topology": topology, "coordinator": arguments.coordinator,
        "backward_s": arguments.backward, "partition_bytes": arguments.partition_bytes,
        "worker_threads": arguments.workers, "seed": arguments.seed,
    }  # fmt: skip


def _say_how_often(arguments: argparse.Namespace) -> None:
    how, ways = _how(arguments, "auto"), {}
    for codec in dict.fromkeys(("none", "fp16", "onebit", arguments.codec)):
        step = predict(arguments.gradients, compression=codec, **how)["step_s"]
        exposed = max(0.0, step - arguments.backward)
        round_s = predict_round(arguments.gradients, compression=codec, **how)
        ways[codec] = interval.Sync(round_s, arguments.compute + exposed)
    sys.stdout.write(f"\nA step computes for {arguments.compute:g} s.\n")
    for row in (interval.COLUMNS, *interval.rows(ways, arguments.compute, arguments.utilisation)):
        sys.stdout.write("  ".join(f"{cell:<16}" for cell in row).rstrip() + "\n")
    sys.stdout.write(interval.advice(ways, arguments.compute, arguments.utilisation) + "\n")

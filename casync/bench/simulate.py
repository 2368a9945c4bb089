"""`casync simulate`: how long a data-parallel step would take, predicted in virtual time.

The engine that runs real jobs runs here over a modelled network and modelled processors, with sizes only:

    casync simulate --nodes 16 --gradients bert-base --rate 1gbit --codec onebit
    casync simulate --cluster hipress-ec2 --gradients vgg19 --codec onebit
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from casync import errors
from casync._constants import COORDINATORS, TOPOLOGIES
from casync.bench import cluster, interval, planned
from casync.bench.cluster import Cluster, Compute, Link
from casync.bench.reference_models import MODELS
from casync.bench.units import count, parse_duration, parse_rate, parse_seconds, share
from casync.codecs.specs import CompressionLike
from casync.config.settings import Config
from casync.plan.topology import topology_of
from casync.relaxed import head

if TYPE_CHECKING:
    from casync._core import Simulation

__all__ = ["build_parser", "gradients_of", "main", "predict", "predict_round", "scaling_efficiency"]

T = TypeVar("T")

_MOST_RANKS, _MOST_ELEMENTS = 4096, 10**11
_COPIES_OF_A_ROUND = 10
"""A round takes as long in memory as so many copies of the parameters: it computes the change and its length, the outer
step and the new parameters."""
_NOT_DESCRIBED = Cluster()
_PLACES = ("device", "host")


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
        number, elements = int(match[1] or 1), int(match[2])
        if not 0 < number * elements <= _MOST_ELEMENTS - sum(rows for rows, _ in gradients):
            raise argparse.ArgumentTypeError(f"{text!r}: give from 1 to {_MOST_ELEMENTS:,} elements in all")
        gradients += [(elements, 1)] * number
    return gradients


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = argparse.ArgumentParser(
        prog="casync simulate",
        description="Predict the time of a data-parallel step in virtual time. Nothing is measured: codecs cost what "
        "they do on one core that copies 8 GB/s, unless a cluster's file says otherwise.",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help=f"hosts, links, codecs and models' times: {', '.join(cluster.shipped())}, or a TOML file. "
        "Other options come before what it says",
    )
    parser.add_argument("--nodes", type=count, default=4, help="hosts (4)")
    parser.add_argument("--ranks-per-node", type=count, default=1, help="ranks on each host (1)")
    parser.add_argument(
        "--gradients", default="resnet50", metavar="MODEL|SIZES", help=f"{', '.join(MODELS)}, or 400x65536 (resnet50)"
    )
    parser.add_argument(
        "--plan-file",
        metavar="FILE",
        help="gradients, and how each goes, as a job has written them; what it measured comes after a cluster's file",
    )
    parser.add_argument("--rate", type=parse_rate, default="1gbit", help="of a host's link, each way (1gbit)")
    parser.add_argument("--latency", type=parse_seconds, default="50us", help="between hosts (50us)")
    parser.add_argument("--codec", default="none", help="compression as a script names it (none)")
    parser.add_argument(
        "--codecs-on",
        choices=_PLACES,
        default="device",
        help="what computes codecs, where the cluster's file says what both take (device)",
    )
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
    parser.add_argument("--partition-bytes", type=count, default=size, help=f"limit of a partition's payload ({size})")
    pool = Config.pool_bytes
    parser.add_argument("--pool-bytes", type=count, default=pool, help=f"of a rank, for payloads and sums ({pool})")
    parser.add_argument(
        "--workers",
        type=count,
        default=1,
        help="processors per rank that encode and decode, unless its device does (1)",
    )
    parser.add_argument("--seed", type=count, default=1)
    parser.add_argument(
        "--timeline", metavar="FILE", default="", help="write what rank 0 does, by the last topology, as a Chrome trace"
    )
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
    cluster: Cluster = _NOT_DESCRIBED,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    rate: float | None = None,
    latency_s: float | None = None,
    worker_threads: int | None = None,
    compression: CompressionLike = "none",
    codecs_on: str = "device",
    topology: str = "auto",
    coordinator: str = "local",
    backward_s: float = 0.0,
    partition_bytes: float = Config.partition_bytes,
    partitions: int | None = None,
    pool_bytes: int = Config.pool_bytes,
    seed: int = 1,
    timeline: str = "",
    plans: Sequence[Mapping[str, Any]] = (),
) -> Simulation:
    """Return what one step of synchronisation would take: `step_s` in seconds, `sent_bytes` of the busiest rank, and
    the `plans` of the gradients.

    `gradients` are the rows and columns of each gradient, in the order of the forward pass; they become ready from the
    last to the first, within `backward_s`. `cluster` describes the machines. What else is given comes before what it
    says: `rate` is that of a host's link in bytes per second, each way, and `worker_threads` are processors of a rank
    that compute codecs. `compression` is a codec as a script names it, and `codecs_on` says where those are computed
    that the cluster has costs of for both. Each gradient has as many `partitions`; None: as the planner finds best.
    `timeline` is a file, to which what rank 0 does is written. With `plans` each gradient goes by its own, whatever
    `compression`, `topology` and `partitions` say.

    Raises `InvalidArgumentError` for what no session would accept. Any thread may call.
    """
    from casync import _core  # the compiled core, not needed for --help
    from casync.codecs.specs import codec_text

    network, inside = cluster.network, cluster.inside
    network = Link(_given(rate, network.rate), _given(latency_s, network.latency_s), network.message_s)
    machines = dataclasses.replace(
        cluster,
        hosts=_given(nodes, cluster.hosts),
        ranks_per_host=_given(ranks_per_node, cluster.ranks_per_host),
    )
    return _core.simulate(
        gradients=gradients,
        host_of=machines.host_of(),
        between=dataclasses.astuple(network),
        within=dataclasses.astuple(inside),
        compression=codec_text(compression),
        topology=topology_of(topology),
        coordinator=coordinator,
        backward_s=backward_s,
        partition_bytes=partition_bytes,
        partitions=partitions,
        pool_bytes=pool_bytes,
        worker_threads=_given(worker_threads, cluster.processors),
        codecs=cluster.costs("host"),
        device_codecs=cluster.costs("device") if codecs_on == "device" else {},
        copy_rate=cluster.copy_rate,
        seed=seed,
        timeline=timeline,
        plans=plans,
    )


def _given(value: T | None, prior: T) -> T:
    return prior if value is None else value


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
    parser = build_parser()
    arguments = parser.parse_args(argv)
    machines = _NOT_DESCRIBED
    try:
        gradients = gradients_of(arguments.gradients)
        if arguments.cluster is not None:
            machines = cluster.load(arguments.cluster)
    except (argparse.ArgumentTypeError, errors.InvalidArgumentError) as error:
        parser.error(str(error))
    plans: planned.Planned | None = None
    if arguments.plan_file is not None:
        if (arguments.gradients, arguments.codec, arguments.topology) != ("resnet50", "none", None):
            parser.error("a plan file says gradients, codecs and topologies: leave out those or --plan-file")
        try:
            plans = planned.read(arguments.plan_file)
        except errors.InvalidArgumentError as error:
            parser.error(str(error))
        machines, gradients = dataclasses.replace(machines, codecs={**plans.codecs, **machines.codecs}), plans.gradients
        known = {"nodes": plans.nodes, "ranks_per_node": plans.ranks_per_node, "rate": plans.rate}
        parser.set_defaults(**{option: value for option, value in known.items() if value is not None})
        arguments = parser.parse_args(argv)
    computes = machines.models.get(arguments.gradients, Compute())
    if arguments.cluster is not None:
        parser.set_defaults(
            nodes=machines.hosts, ranks_per_node=machines.ranks_per_host, rate=machines.network.rate,
            latency=machines.network.latency_s, workers=machines.processors, backward=computes.backward_s,
        )  # fmt: skip
        arguments = parser.parse_args(argv)
    ranks = arguments.nodes * arguments.ranks_per_node
    if ranks > _MOST_RANKS:
        parser.error(f"{ranks:,} ranks are more than the {_MOST_RANKS:,} that can be simulated")
    size = sum(rows * cols for rows, cols in gradients) * 4 / 2**20
    sys.stdout.write(
        f"{ranks} ranks on {arguments.nodes} hosts, {len(gradients)} gradients of {size:.2f} MiB, "
        f"{f'plans of {arguments.plan_file}' if plans else f'codec {arguments.codec}'}\n"
    )
    sys.stdout.write(
        f"{'topology':<10} {'step':>12} {'sent by the busiest rank':>26} {'efficiency':>11}   simulated in\n"
    )
    codecs: set[str] = set()
    usual = ("auto", "ps", "ring", "two_level") if plans is None else ("as planned",)
    for topology in arguments.topology or usual:
        begin = time.monotonic()
        try:
            how = _how(arguments, machines, "auto" if plans else topology)
            how["plans"] = plans.plans if plans else ()
            step = predict(gradients, compression=arguments.codec, timeline=arguments.timeline, **how)
        except errors.InvalidArgumentError as error:
            sys.stdout.write(f"{topology:<10} {error}\n")
            continue
        codecs |= {plan["codec"] for plan in step["plans"]}
        took = time.monotonic() - begin
        part = scaling_efficiency(computes.forward_s, arguments.backward, step["step_s"])
        shown = f"{part:.2f}" if computes.forward_s + arguments.backward > 0 else ""
        sys.stdout.write(
            f"{topology:<10} {step['step_s'] * 1e3:>9.2f} ms {step['sent_bytes'] / 2**20:>22.2f} MiB {shown:>11}   "
            f"{took:.2f} s\n"
        )
    if codecs and arguments.cluster is not None:
        _say_what_is_assumed(machines, arguments, codecs)
    if codecs and arguments.compute is not None:
        _say_how_often(gradients, machines, arguments)
    return 0 if codecs else 1


def scaling_efficiency(forward_s: float, backward_s: float, step_s: float) -> float:
    """The part of a step that a rank computes: 1 would be linear scaling. `step_s` is from the backward pass's begin
    until all gradients are synchronised.
    """
    whole = forward_s + max(step_s, backward_s)
    return (forward_s + backward_s) / whole if whole > 0 else 1.0


def _how(arguments: argparse.Namespace, machines: Cluster, topology: str) -> dict[str, Any]:
    """The arguments of `predict` that a command line has for every codec."""
    return {
        "cluster": machines, "nodes": arguments.nodes, "ranks_per_node": arguments.ranks_per_node,
        "rate": arguments.rate, "latency_s": arguments.latency, "topology": topology,
        "coordinator": arguments.coordinator, "backward_s": arguments.backward, "codecs_on": arguments.codecs_on,
        "partition_bytes": arguments.partition_bytes, "pool_bytes": arguments.pool_bytes,
        "worker_threads": arguments.workers, "seed": arguments.seed,
    }  # fmt: skip


def _say_what_is_assumed(machines: Cluster, arguments: argparse.Namespace, codecs: set[str]) -> None:
    """What of the figures no source has stated: what the file assumes, and what it leaves to the simulator."""
    concerned = {f"codecs.{codec}" for codec in codecs} | {f"models.{arguments.gradients}"}
    assumed = [
        f"{key} = {value}"
        for key, value in machines.assumed.items()
        if not key.startswith(("codecs.", "models.")) or key.rpartition(".")[0] in concerned
    ]
    sys.stdout.write("\n" + ": ".join(filter(None, (machines.name, machines.source))) + "\n")
    for heading, values in (("assumed by this file", assumed), ("left to the simulator", machines.left(codecs))):
        lines = [f"{heading}, where no option says otherwise:\n", *(f"  {value}\n" for value in values)]
        sys.stdout.write("".join(lines) if values else "")


def _say_how_often(gradients: Sequence[tuple[int, int]], machines: Cluster, arguments: argparse.Namespace) -> None:
    how, ways = _how(arguments, machines, "auto"), {}
    for codec in dict.fromkeys(("none", "fp16", "onebit", arguments.codec)):
        step = predict(gradients, compression=codec, **how)["step_s"]
        exposed = max(0.0, step - arguments.backward)
        round_s = predict_round(gradients, compression=codec, **how)
        ways[codec] = interval.Sync(round_s, arguments.compute + exposed)
    sys.stdout.write(f"\nA step computes for {arguments.compute:g} s.\n")
    for row in (interval.COLUMNS, *interval.rows(ways, arguments.compute, arguments.utilisation)):
        sys.stdout.write("  ".join(f"{cell:<16}" for cell in row).rstrip() + "\n")
    sys.stdout.write(interval.advice(ways, arguments.compute, arguments.utilisation) + "\n")

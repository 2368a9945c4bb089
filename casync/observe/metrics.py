"""The numbers of what a session has done so far, as `Session.metrics()` and `hvd.metrics()` return them.

All counts are of one rank, and grow from the session's beginning on; queues and memory are as they are now. Times are
in seconds. Each number is exact. They are read one after the other while the session goes on, so two of them may be
some microseconds apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "OWN",
    "CodecMetrics",
    "CompressionMetrics",
    "GradientMetrics",
    "Histogram",
    "Lateness",
    "Metrics",
    "Pool",
    "Queues",
    "RoundMetrics",
    "Traffic",
    "Transport",
    "Work",
]

OWN: Final = "casync."
"""The prefix of the names of CaSync's own tensors. Metrics and plans leave them out: those are the program's."""


@dataclass(frozen=True)
class Histogram:
    """How often something took how long."""

    bounds: tuple[float, ...]
    """The longest time of each bucket, in seconds: 1 µs, 2 µs, 4 µs and so on to 67 s."""
    counts: tuple[int, ...]
    """How many times were in each bucket. The last bucket has no bound, and counts all longer times."""
    sum: float
    """The sum of all times, in seconds."""

    @property
    def count(self) -> int:
        """How many times there were."""
        return sum(self.counts)


@dataclass(frozen=True)
class Traffic:
    """Messages of one codec between this rank and one other, or several. Heads of messages, checksums and what the
    ranks tell each other to agree are not in them; they are in `Transport`.
    """

    messages: int = 0
    raw_bytes: int = 0
    """Bytes of the elements that the messages stand for. 0 in the later rounds of a codec, which add no elements."""
    wire_bytes: int = 0
    """Bytes of the messages as they travel."""

    @classmethod
    def total(cls, every: Iterable[Traffic]) -> Traffic:
        """Return the sum of several."""
        each = list(every)
        return cls(
            sum(one.messages for one in each), sum(one.raw_bytes for one in each), sum(one.wire_bytes for one in each)
        )


@dataclass(frozen=True)
class Work:
    """The computations of a codec, on all threads together; those that failed count too."""

    tasks: int
    seconds: float


@dataclass(frozen=True)
class CodecMetrics:
    """The numbers of one codec. `none` stands for all that goes uncompressed, barriers and broadcasts too."""

    operations: int
    """Operations that have ended well."""
    tensor_bytes: int
    """Bytes of this rank's own tensors in those operations, uncompressed."""
    encode: Work
    merge: Work
    """Sums of several ranks' gradients, decoded and encoded again where the codec needs that."""
    decode: Work
    sent: Mapping[int, Traffic]
    """Traffic by rank; ranks with which there was none are left out."""
    received: Mapping[int, Traffic]


@dataclass(frozen=True)
class GradientMetrics:
    """The numbers of one gradient: what the planner predicted, and what it took on this rank.

    Where `auto` has planned the whole model, a prediction is of the gradient among the others of its step. Else it is
    of a gradient alone: one that is not shares links and cores with the others, and takes longer.
    """

    operations: int
    """Operations that have ended well. The next three numbers are totals over these."""
    seconds: float
    """Time from when all ranks have agreed to begin until the result is there."""
    predicted_seconds: float
    """The same time, as the operations' plans predicted it."""
    ready_seconds: float
    """Time from the submit of the step's first gradient to that of this one."""
    encoded_bytes: int
    """Bytes of the gradient that this rank has encoded, uncompressed."""
    payload_bytes: int
    """Bytes that these became when they were encoded."""
    plan_seconds: float
    """The mean of `seconds` since the gradient has the plan that it has."""


@dataclass(frozen=True)
class CompressionMetrics:
    """What a `CompressionMonitor` has measured of one gradient. The same on all ranks."""

    step: int
    """The step of the last measurement, of which the first is 1."""
    codec: str
    """The codec of that step, as `hvd.plans()` names it."""
    gradient_bytes: int
    payload_bytes: int
    """Bytes of the gradient as one rank encodes it; where their number varies, as measured, or else at most."""
    error: float
    """vNMSE: `|result - true|² / |true|²`, of a sample of the elements, where `true` is what the result would be
    without compression. NaN if it could not be measured: a rank's own gradient was not finite, or `true` was 0.
    """
    residual: float
    """`|residual| / |gradient|`, over all ranks, with the largest `|gradient|` of the last 8 measurements. 0 where the
    codec keeps none; NaN if it could not be measured.
    """
    fault: str
    """What the monitor has found wrong with the codec that the program asked for; empty: nothing."""

    @property
    def ratio(self) -> float:
        """How many times smaller the payload is than the gradient."""
        return self.gradient_bytes / self.payload_bytes


@dataclass(frozen=True)
class Queues:
    """Counts of what waits, or is under way, now."""

    operations: int
    """Operations that are submitted and have not ended."""
    partitions: int
    """Parts of tensors that wait for memory of the pool."""
    tasks: int
    """Encodes, merges and decodes at a worker, or waiting for one."""
    sends: int
    """Messages that are ready, and wait for their receiver or for their link."""
    sends_flowing: int
    """Messages that the transport is sending. Small ones, which go inside heads, are not counted."""


@dataclass(frozen=True)
class Pool:
    """Memory for payloads and partial sums, in bytes."""

    capacity_bytes: int
    """`CASYNC_POOL_BYTES`."""
    used_bytes: int
    peak_bytes: int
    """The most that was ever used at once."""
    held_bytes: int
    """Taken from the system: in use, or kept for the next step."""


@dataclass(frozen=True)
class Transport:
    """All that this rank sent and received, heads, checksums and control messages included; the network's own headers
    are not.
    """

    sent_bytes: int
    received_bytes: int
    sent_messages: int
    received_messages: int


@dataclass(frozen=True)
class Lateness:
    """How punctual one rank is, as rank 0 hears it. Joins are left out."""

    reports: int
    """Operations that the rank has submitted. A rank with fewer than the others is late now."""
    last: int
    """Operations that it was the last one to submit."""
    seconds: float
    """Time in these operations from the first rank's submit to this rank's own, in all."""


@dataclass(frozen=True)
class RoundMetrics:
    """The rounds of one local SGD or DiLoCo, in which parameters are averaged in place of gradients."""

    steps: int
    """Steps that this rank has made by itself."""
    rounds: int
    """Rounds that have ended well; each fragment has rounds of its own."""
    void_rounds: int
    """Rounds without effect, because a rank had NaN or infinity."""
    exposed_seconds: float
    """Time that the program has waited for rounds, in all. What is hidden behind its steps is not in it."""
    distance: float
    """How far the ranks were apart before the last round: the root of the mean, over the ranks, of the squared distance
    of their parameters from the mean of all. Estimated from 256 of the elements, so it is right within some 20 %.
    """
    relative_distance: float
    """The same, divided by the length of the global parameters."""


@dataclass(frozen=True)
class Metrics:
    """A snapshot of one session on one rank."""

    rank: int
    size: int
    steps: int
    """Steps that were begun. A step begins when a tensor is reduced that was reduced before in the step under way."""
    step_seconds: Histogram
    """Times from the beginning of a step to that of the next one. The step under way is not in it yet."""
    exposed_seconds: Histogram
    """Times, in the same steps, that the program's threads waited in `synchronize` and the like."""
    waited_seconds: float
    """Total of these waits, with those in the step under way and outside of steps."""
    failed_operations: int
    codecs: Mapping[str, CodecMetrics]
    """Numbers by codec, as `hvd.plans()` names it."""
    gradients: Mapping[str, GradientMetrics]
    """Numbers of what was allreduced or reducescattered, by its name in `hvd.plans()`."""
    queues: Queues
    pool: Pool
    transport: Transport
    lateness: Mapping[int, Lateness]
    """Lateness by rank. Only rank 0 keeps it; empty elsewhere."""
    rounds: Mapping[str, RoundMetrics]
    """Numbers of each local SGD and DiLoCo, by the word that its tensors' names begin with (`diloco`, `localsgd1`)."""
    compression: Mapping[str, CompressionMetrics]
    """What a `CompressionMonitor` has measured, by the gradient's name in `hvd.plans()`; empty without one."""

    @property
    def compression_ratio(self) -> float:
        """How many times smaller payloads are than gradients, over all in `compression`; 1 if that is empty."""
        every = self.compression.values()
        payloads = sum(one.payload_bytes for one in every)
        return sum(one.gradient_bytes for one in every) / payloads if payloads else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the same as dicts and lists, for JSON."""
        return dataclasses.asdict(self)


def metrics_of(
    rank: int,
    size: int,
    told: Mapping[str, Any],
    rounds: Mapping[str, RoundMetrics],
    compression: Mapping[str, CompressionMetrics],
) -> Metrics:
    """Make the metrics of what the compiled core says (bindings/metrics_py.cc), and of what Python keeps."""
    return Metrics(
        rank=rank,
        size=size,
        steps=told["steps"],
        step_seconds=Histogram(**told["step_seconds"]),
        exposed_seconds=Histogram(**told["exposed_seconds"]),
        waited_seconds=told["waited_seconds"],
        failed_operations=told["failed_operations"],
        codecs={name: _codec_of(codec) for name, codec in told["codecs"].items()},
        gradients={name: GradientMetrics(**one) for name, one in told["gradients"].items() if not name.startswith(OWN)},
        queues=Queues(**told["queues"]),
        pool=Pool(**told["pool"]),
        transport=Transport(**told["transport"]),
        lateness={member: Lateness(**late) for member, late in enumerate(told["lateness"])},
        rounds=dict(rounds),
        compression=dict(compression),
    )


def _codec_of(told: Mapping[str, Any]) -> CodecMetrics:
    return CodecMetrics(
        operations=told["operations"],
        tensor_bytes=told["tensor_bytes"],
        encode=Work(**told["encode"]),
        merge=Work(**told["merge"]),
        decode=Work(**told["decode"]),
        sent={peer: Traffic(**one) for peer, one in told["sent"].items()},
        received={peer: Traffic(**one) for peer, one in told["received"].items()},
    )

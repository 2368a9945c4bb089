"""Metrics in Prometheus' text format, and the page from which Prometheus fetches them.

It takes `prometheus_client`, which the extra `metrics` installs, and imports it at the first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from casync.errors import InvalidArgumentError, NotAvailableError
from casync.observe.metrics import Histogram, Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["Page", "text_of"]

_VARIABLE = "CASYNC_METRICS_PORT"
_ADDRESS = "CASYNC_METRICS_ADDRESS"
_LAST_PORT = 65535

Read = Callable[[], Mapping[int, Metrics]]
"""Returns the metrics of each process set, by its number."""
Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values, each with the values of its labels."""


class _Family(NamedTuple):
    """Values of one kind: Prometheus' name, what it is, labels, and how it follows from a snapshot."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Metrics], Samples]


def _one(value: Callable[[Metrics], float]) -> Callable[[Metrics], Samples]:
    return lambda metrics: [((), value(metrics))]


def _by_codec(field: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [((name,), getattr(codec, field)) for name, codec in metrics.codecs.items()]


def _by_gradient(field: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [((name,), getattr(one, field)) for name, one in metrics.gradients.items()]


def _by_rounds(field: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [((name,), getattr(one, field)) for name, one in metrics.rounds.items()]


def _by_compression(field: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [((name,), getattr(one, field)) for name, one in metrics.compression.items()]


def _by_message(field: str) -> Callable[[Metrics], Samples]:
    def samples(metrics: Metrics) -> Samples:
        for name, codec in metrics.codecs.items():
            for direction, traffic in (("sent", codec.sent), ("received", codec.received)):
                for peer, one in traffic.items():
                    yield (name, str(peer), direction), getattr(one, field)

    return samples


def _by_work(field: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [
        ((name, task), getattr(getattr(codec, task), field))
        for name, codec in metrics.codecs.items()
        for task in ("encode", "merge", "decode")
    ]


def _by_rank(field: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [((str(peer),), getattr(late, field)) for peer, late in metrics.lateness.items()]


def _transport(unit: str) -> Callable[[Metrics], Samples]:
    return lambda metrics: [
        ((direction,), getattr(metrics.transport, f"{direction}_{unit}")) for direction in ("sent", "received")
    ]


def _queues(metrics: Metrics) -> Samples:
    return [((name,), getattr(metrics.queues, name)) for name in type(metrics.queues).__dataclass_fields__]


_MESSAGE = ("codec", "peer", "direction")
_COUNTERS = (
    _Family("casync_steps", "Steps begun.", (), _one(lambda metrics: metrics.steps)),
    _Family(
        "casync_waited_seconds",
        "Time that threads of the program waited for operations.",
        (),
        _one(lambda metrics: metrics.waited_seconds),
    ),
    _Family("casync_operations", "Operations that ended well.", ("codec",), _by_codec("operations")),
    _Family("casync_tensor_bytes", "Bytes of this rank's tensors in them.", ("codec",), _by_codec("tensor_bytes")),
    _Family(
        "casync_failed_operations",
        "Operations that ended with an error.",
        (),
        _one(lambda metrics: metrics.failed_operations),
    ),
    _Family("casync_messages", "Messages with parts of tensors.", _MESSAGE, _by_message("messages")),
    _Family("casync_message_raw_bytes", "Bytes of their elements, uncompressed.", _MESSAGE, _by_message("raw_bytes")),
    _Family("casync_message_wire_bytes", "Bytes of them as they travel.", _MESSAGE, _by_message("wire_bytes")),
    _Family("casync_codec_tasks", "Encodes, merges and decodes.", ("codec", "task"), _by_work("tasks")),
    _Family("casync_codec_seconds", "Time of encodes, merges and decodes.", ("codec", "task"), _by_work("seconds")),
    _Family("casync_gradient_operations", "Operations of a gradient.", ("gradient",), _by_gradient("operations")),
    _Family("casync_gradient_seconds", "Time of these operations.", ("gradient",), _by_gradient("seconds")),
    _Family(
        "casync_gradient_predicted_seconds",
        "The same, as their plans predicted it.",
        ("gradient",),
        _by_gradient("predicted_seconds"),
    ),
    _Family(
        "casync_gradient_ready_seconds",
        "From the step's first gradient to this one.",
        ("gradient",),
        _by_gradient("ready_seconds"),
    ),
    _Family("casync_gradient_encoded_bytes", "Bytes that were encoded.", ("gradient",), _by_gradient("encoded_bytes")),
    _Family("casync_gradient_payload_bytes", "What they became.", ("gradient",), _by_gradient("payload_bytes")),
    _Family("casync_rounds", "Rounds that ended well.", ("rounds",), _by_rounds("rounds")),
    _Family("casync_void_rounds", "Rounds without effect.", ("rounds",), _by_rounds("void_rounds")),
    _Family("casync_own_steps", "Steps between rounds.", ("rounds",), _by_rounds("steps")),
    _Family(
        "casync_round_waited_seconds", "Time that was waited for rounds.", ("rounds",), _by_rounds("exposed_seconds")
    ),
    _Family("casync_transport_bytes", "All bytes, heads included.", ("direction",), _transport("bytes")),
    _Family("casync_transport_messages", "Messages of the transport.", ("direction",), _transport("messages")),
    _Family("casync_reports", "Operations that rank 0 heard a rank submit.", ("peer",), _by_rank("reports")),
    _Family("casync_last_reports", "Operations that a rank was last to submit.", ("peer",), _by_rank("last")),
    _Family("casync_late_seconds", "Time by which it was later than the first.", ("peer",), _by_rank("seconds")),
)
_GAUGES = (
    _Family("casync_rank_distance", "Of ranks before a round, relative.", ("rounds",), _by_rounds("relative_distance")),
    _Family("casync_compression_error", "vNMSE, as last measured.", ("gradient",), _by_compression("error")),
    _Family("casync_compression_residual", "|residual| / |gradient|.", ("gradient",), _by_compression("residual")),
    _Family("casync_compression_ratio", "Bytes of gradients by payloads.", ("gradient",), _by_compression("ratio")),
    _Family("casync_queue_length", "How many wait or are under way.", ("queue",), _queues),
    _Family("casync_pool_capacity_bytes", "Size of the pool.", (), _one(lambda metrics: metrics.pool.capacity_bytes)),
    _Family("casync_pool_used_bytes", "Memory of it in use.", (), _one(lambda metrics: metrics.pool.used_bytes)),
    _Family("casync_pool_peak_bytes", "The most in use at once.", (), _one(lambda metrics: metrics.pool.peak_bytes)),
    _Family("casync_pool_held_bytes", "Memory held for payloads.", (), _one(lambda metrics: metrics.pool.held_bytes)),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Metrics], Histogram]], ...] = (
    ("casync_step_seconds", "Time of a step.", lambda metrics: metrics.step_seconds),
    ("casync_exposed_seconds", "Time that a step waited for operations.", lambda metrics: metrics.exposed_seconds),
)
_WHOSE = ("rank", "process_set")  # labels that all have


class _Collector:
    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        every = {(str(one.rank), str(number)): one for number, one in self._read().items()}
        kinds: tuple[tuple[Any, tuple[_Family, ...]], ...] = (
            (CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES),
        )  # fmt: skip
        for kind, families in kinds:
            for family in families:
                metric = kind(family.name, family.help, labels=(*_WHOSE, *family.labels))
                for whose, metrics in every.items():
                    for labels, value in family.samples(metrics):
                        metric.add_metric((*whose, *labels), value)
                yield metric
        for name, text, taken in _HISTOGRAMS:
            metric = HistogramMetricFamily(name, text, labels=_WHOSE)
            for whose, metrics in every.items():
                histogram = taken(metrics)
                buckets, so_far = [], 0
                for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                    so_far += count
                    buckets.append((bound, so_far))
                metric.add_metric(whose, buckets, histogram.sum)
            yield metric


def _registry(read: Read) -> CollectorRegistry:
    try:
        import prometheus_client
    except ModuleNotFoundError:
        raise NotAvailableError(
            "Prometheus' format takes the package prometheus_client, which is not installed: pip install "
            "prometheus_client"
        ) from None
    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(read))
    return registry


def text_of(read: Read) -> str:
    """Return the text that a scrape gets. Raises `NotAvailableError` without `prometheus_client`."""
    registry = _registry(read)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


class Page:
    """An HTTP server at an address of this host, with a thread of its own; the page is `/metrics`.

    Its port is `port` + `local_rank`, so that each rank of a host has one. Raises `InvalidArgumentError` if that is
    taken or no port, or the address is none of this host, and `NotAvailableError` without `prometheus_client`.
    """

    def __init__(self, port: int, local_rank: int, read: Read, address: str = "127.0.0.1") -> None:
        registry = _registry(read)
        from prometheus_client import start_http_server

        self.port = port + local_rank
        asked = f"{_VARIABLE}={port}: local rank {local_rank} serves its metrics on port {self.port}"
        if self.port > _LAST_PORT:
            raise InvalidArgumentError(f"{asked}, and {_LAST_PORT} is the last port that there is")
        try:
            self._server, self._thread = start_http_server(self.port, addr=address, registry=registry)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidArgumentError(
                f"{asked}, which it cannot have at {_ADDRESS}={address}: {reason}. Name another port, of which as many "
                "after it are free as this host has ranks, or another address of this host"
            ) from None
        self._process = os.getpid()

    def close(self) -> None:
        """End the server; its port is free."""
        if self._process == os.getpid():  # a child process that was forked has no such thread
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

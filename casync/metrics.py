"""Metrics of this process: what `hvd.metrics()` returns, and the same for Prometheus.

    import casync.metrics
    print(casync.metrics.prometheus())

`CASYNC_METRICS_PORT=9400` has the first rank of each host serve this text as `/metrics` on port 9400, the second one on
port 9401, and so on. docs/metrics.md says what each number is.
"""

from __future__ import annotations

from casync.observe import prometheus as exposition
from casync.observe.metrics import (
    CodecMetrics,
    CompressionMetrics,
    GradientMetrics,
    Histogram,
    Lateness,
    Metrics,
    Pool,
    Queues,
    RoundMetrics,
    Traffic,
    Transport,
    Work,
)
from casync.session import default

__all__ = [
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
    "prometheus",
]


def prometheus() -> str:
    """The metrics of all process sets that this process is in, as Prometheus' text. Any thread, at once.

    After `shutdown()` the last numbers. Raises `InvalidArgumentError` before `init()`, and `NotAvailableError`, with
    the remedy, where `prometheus_client` is not installed.
    """
    default.metrics_of_all_sets()
    return exposition.text_of(default.metrics_of_all_sets)

"""Tables in Markdown, and lists of what figures assume."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from casync.bench.cluster import Cluster

__all__ = ["POOL_BYTES", "assumed", "milliseconds", "table", "wrapped"]

POOL_BYTES = 256 << 20
"""Each rank has so much for payloads and partial sums in all simulations: devices have more than the usual 24 MiB."""


def table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    names = [str(head) for head in heads]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def milliseconds(seconds: float) -> str:
    """With one digit after the point."""
    return f"{1e3 * seconds:.1f}"


def assumed(cluster: Cluster) -> list[str]:
    """The lines of a list with an item for each value of a cluster's file that no paper prints."""
    items = (f"- {key} = {value}" for key, value in cluster.assumed.items())
    return [line for item in items for line in wrapped(item, "  ")]


def wrapped(text: str, indent: str = "") -> list[str]:
    """The lines of a paragraph, or of an item of a list."""
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

"""`casync trace merge`: the timelines of a job's ranks in one file.

Each rank writes its own (CASYNC_TIMELINE, `start_timeline`), in time since its own start. Put together they are in
time since the first start, as far as the clocks of the hosts agree. Perfetto (ui.perfetto.dev) opens one or the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["build_parser", "main", "merged"]

_START = "start_time_since_epoch_in_micros"


def merged(timelines: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The events of all, in the time of the one that started first. Raises ValueError for what is no timeline."""
    held = [(_start_of(events), events) for events in timelines]
    first = min((start for start, _ in held), default=0)
    together: list[dict[str, Any]] = []
    for start, events in held:
        for event in events:
            if event["name"] == _START:
                event = {**event, "args": {_START: first}}
            elif "ts" in event:
                event = {**event, "ts": round(event["ts"] + start - first, 3)}
            together.append(event)
    return together


def _start_of(events: Sequence[dict[str, Any]]) -> int:
    for event in events:
        if event.get("name") == _START:
            return int(event["args"][_START])
    raise ValueError("no timeline of CaSync: it does not say when it began")


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = argparse.ArgumentParser(prog="casync trace", description="Put the timelines of several ranks into one.")
    actions = parser.add_subparsers(required=True, metavar="merge")
    merge = actions.add_parser("merge", help="put timelines together")
    merge.add_argument("timelines", metavar="FILE", nargs="+", type=Path, help="what one rank wrote")
    merge.add_argument("-o", "--output", metavar="MERGED", type=Path, help="where to (default: standard output)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `casync trace`; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    held = []
    for path in arguments.timelines:
        try:
            events = json.loads(path.read_text(encoding="utf-8"))
            _start_of(events)
            held.append(events)
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            sys.stderr.write(f"casync trace: {path}: {error}\n")
            return 1
    text = json.dumps(merged(held)) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")
    return 0

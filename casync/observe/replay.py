"""`casync replay LOG...`: does a fresh engine do again what a rank did?

A session with `event_log` (CASYNC_EVENT_LOG) writes what each rank's engine saw, decided and did to a file of its own.
Replaying such a file needs neither the other ranks nor the gradients, so a log from a cluster can be looked into on a
laptop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from casync import errors

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = argparse.ArgumentParser(
        prog="casync replay", description="Feed event logs to a fresh engine and compare its actions."
    )
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", help="a file that a session wrote with event_log set, one per rank"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `casync replay`; returns 0 if every log replays to the identical actions, else 1."""
    arguments = build_parser().parse_args(argv)
    from casync import _core  # the compiled core, not needed for --help

    status = 0
    for path in arguments.logs:
        try:
            result = _core.replay(path)
        except errors.CasyncError as error:
            sys.stderr.write(f"casync replay: {error}\n")
            status = 1
            continue
        if result["difference"]:
            sys.stdout.write(f"{path}: differs at {result['difference']}\n")
            status = 1
        else:
            sys.stdout.write(f"{path}: {result['events']} events, {result['actions']} actions, all the same\n")
    return status

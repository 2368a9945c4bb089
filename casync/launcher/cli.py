"""The command `casyncrun`: parse, look at the machine, run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from casync.launcher.mpirun import MpiNotFound, compose, gather_facts
from casync.launcher.options import UsageError, parse

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `casyncrun`; returns its exit status."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        sys.stderr.write(f"casyncrun: {error}\nTry `casyncrun --help`.\n")
        return 2
    if options.check_build:
        from casync.doctor import check_build  # late: it imports the frameworks' metadata

        sys.stdout.write(check_build())
        return 0
    environ = dict(os.environ)
    try:
        facts = gather_facts(environ)
    except MpiNotFound as error:
        sys.stderr.write(f"casyncrun: {error}\n")
        return 1
    if options.dry_run:
        launch = compose(options, facts, environ)
        sys.stderr.write(f"casyncrun: {launch.note}\n")
        sys.stdout.write(launch.shell() + "\n")
        return 0
    from casync.launcher.job import run_job

    return run_job(options, facts, environ)

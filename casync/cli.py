"""The command `casync`: one table of subcommands, each imported only when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import casync

__all__ = ["COMMANDS", "Command", "available", "main"]


@dataclass(frozen=True)
class Command:
    """A subcommand: `function` of `module` takes the remaining arguments and returns the exit status."""

    name: str
    module: str
    function: str
    summary: str


COMMANDS = (
    Command("run", "casync.launcher", "main", "start a job of N ranks (the same as casyncrun)"),
    Command("doctor", "casync.launcher.doctor", "main", "what was found on this machine, what was not, and what to do"),
    Command("replay", "casync.observe.replay", "main", "feed an event log to the engine and compare its actions"),
    Command("trace", "casync.observe.trace_merge", "main", "put the timelines of several ranks into one"),
    Command("plan", "casync.plan.cli", "plan_main", "show and explain synchronisation plans"),
    Command("compll", "casync.compll.cli", "main", "check, show, test and time compression algorithms in CompLL"),
    Command("bench", "casync.bench.cli", "main", "measure with real ranks whether to compress, and with which codec"),
    Command("simulate", "casync.bench.simulate", "main", "predict the time of a step in virtual time"),
)


def available() -> tuple[Command, ...]:
    """The subcommands whose module this installation has."""
    return tuple(command for command in COMMANDS if _exists(command.module))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not there either
        return False


def _usage() -> str:
    lines = [f"  {command.name:<10} {command.summary}" for command in available()]
    return "\n".join(["usage: casync COMMAND ...", "", *lines, "", "casync COMMAND --help says more."]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `casync`; returns its exit status."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # None if the command was started with its output closed
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # as in `casync simulate | head -1`: nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        sys.stdout.write(f"casync {casync.__version__}\n")
        return 0
    for command in available():
        if command.name == given[0]:
            function = getattr(importlib.import_module(command.module), command.function)
            return int(function(given[1:]) or 0)
    sys.stderr.write(f"casync: no command {given[0]!r}\n{_usage()}")
    return 2

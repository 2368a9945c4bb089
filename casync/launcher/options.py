"""The command line of casyncrun as a plain frozen value.

`parse` reads no file but the hostfile, no environment, and starts nothing, so a command line is tested as data.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import casync
from casync.launcher.hosts import Host, HostError, parse_hostfile, parse_hosts

__all__ = ["Options", "UsageError", "build_parser", "parse"]


class UsageError(ValueError):
    """A command line that cannot be run; the text says what to change."""


@dataclass(frozen=True)
class Options:
    """What the user asked for. Durations in seconds."""

    command: tuple[str, ...] = ()
    num_proc: int = 0
    hosts: tuple[Host, ...] = ()
    exports: tuple[str, ...] = ()
    rsh_agent: str | None = None
    mpi_args: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    start_timeout: float = 60.0
    grace: float = 15.0
    dry_run: bool = False
    check_build: bool = False
    verbose: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def build_parser() -> argparse.ArgumentParser:
    """The parser, for `parse` and for the reference manual."""
    parser = _Parser(
        prog="casyncrun",
        usage="casyncrun -np N [options] COMMAND ...",
        description="Run COMMAND as N ranks under Open MPI's mpirun, and answer for how they end.",
        epilog="Exit status: 0 when every rank left with 0; otherwise that of the first rank that failed "
        "(128 + the signal's number for one that was killed), 2 for a command line that cannot be run.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="version", version=f"casyncrun {casync.__version__}")
    parser.add_argument(
        "-np", "--num-proc", type=int, metavar="N", help="ranks to start (default: every slot of the hosts)"
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H", "--hosts", metavar="h1:2,h2:2", help="hosts and how many ranks each takes (default: this one)"
    )
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="a file of lines `HOST slots=N`")
    parser.add_argument(
        "-x",
        dest="exports",
        action="append",
        default=[],
        metavar="VAR[=VALUE]",
        help="give the ranks on other hosts this variable; may be repeated",
    )
    parser.add_argument("--rsh-agent", metavar="PROGRAM", help="what starts a remote shell (default: ssh)")
    parser.add_argument(
        "--mpi-args", action="append", default=[], metavar="ARGS", help="further arguments of mpirun, in one string"
    )
    parser.add_argument(
        "--network-interface",
        "--network-interfaces",
        "--nics",
        dest="networks",
        action="append",
        default=[],
        metavar="NET",
        help="interfaces or subnets that ranks and daemons may use, e.g. eth0 or 10.0.0.0/16",
    )
    parser.add_argument(
        "--timeout-start",
        "--start-timeout",
        dest="start_timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds within which every rank must have started (default: 60)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=15.0,
        metavar="S",
        help="seconds that the other ranks have to leave by themselves after one failed (default: 15)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the mpirun line, quoted for a shell, and start nothing"
    )
    parser.add_argument("-cb", "--check-build", action="store_true", help="print what this installation was built with")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show the mpirun line, ranks as they start and end, and all of mpirun's output",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what each rank runs")
    return parser


def parse(argv: Sequence[str]) -> Options:
    """The command line (without the program's name) as a value; UsageError where it cannot be meant."""
    given = build_parser().parse_args(list(argv))
    command = tuple(given.command[1:] if given.command[:1] == ["--"] else given.command)
    hosts = _hosts(given.hosts, given.hostfile)
    slots = sum(host.slots for host in hosts)
    num_proc = given.num_proc if given.num_proc is not None else slots
    if not given.check_build:
        if given.num_proc is None and not hosts:
            raise UsageError("say how many ranks to start: -np N")
        if num_proc < 1:
            raise UsageError(f"-np {num_proc}: at least one rank")
        if hosts and num_proc > slots:
            raise UsageError(
                f"-np {num_proc} is more than the {slots} slots of the hosts; raise HOST:SLOTS or lower -np"
            )
        if not command:
            raise UsageError("no command to run")
    for item in given.exports:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*(=|$)", item):
            raise UsageError(f"-x {item}: not VAR or VAR=VALUE")
    for name in ("start_timeout", "grace"):
        if getattr(given, name) < 0:
            raise UsageError(f"{name.replace('_', ' ')} {getattr(given, name)}: not a duration")
    return Options(
        command=command,
        num_proc=num_proc,
        hosts=hosts,
        exports=tuple(given.exports),
        rsh_agent=given.rsh_agent,
        mpi_args=tuple(word for text in given.mpi_args for word in shlex.split(text)),
        networks=tuple(net.strip() for text in given.networks for net in text.split(",") if net.strip()),
        start_timeout=given.start_timeout,
        grace=given.grace,
        dry_run=given.dry_run,
        check_build=given.check_build,
        verbose=given.verbose,
    )


def _hosts(listed: str | None, file: str | None) -> tuple[Host, ...]:
    try:
        if listed is not None:
            return parse_hosts(listed)
        if file is not None:
            return parse_hostfile(Path(file).read_text(encoding="utf-8"))
    except HostError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"--hostfile {file}: {error.strerror}") from None
    return ()

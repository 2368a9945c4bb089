"""The command line of casyncrun as a plain frozen value.

`parse` reads no file but those that the line names, no environment, and starts nothing, so a command line is tested as
data. What each flag means stands in `casync.launcher.flags`.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import casync
from casync.launcher.config_file import ConfigFileError, read_settings
from casync.launcher.flags import FLAGS, Flag, Nothing, Refused, Variable
from casync.launcher.hosts import Host, parse_hostfile, parse_hosts
from casync.rendezvous.slurm_hosts import HostError

__all__ = ["Options", "Parser", "UsageError", "build_parser", "parse"]


class UsageError(ValueError):
    """A command line that cannot be run; the text says what to change."""


@dataclass(frozen=True)
class Options:
    """The wishes of the user. Durations in seconds."""

    command: tuple[str, ...] = ()
    num_proc: int = 0
    hosts: tuple[Host, ...] = ()
    exports: tuple[str, ...] = ()
    rsh_agent: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    mpi_args: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    start_timeout: float = 60.0
    grace: float = 15.0
    output_folder: str | None = None
    timestamps: bool = False
    remarks: tuple[str, ...] = ()
    dry_run: bool = False
    check_build: bool = False
    verbose: bool = False


class Parser(argparse.ArgumentParser):
    """One whose errors are a `UsageError`, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _ReadConfigFile(argparse.Action):
    """Takes the file's settings here, so that flags after it win and flags before it lose."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        try:
            settings = read_settings(Path(values).read_text(encoding="utf-8"))
        except (ConfigFileError, UnicodeDecodeError) as error:
            raise UsageError(f"--config-file {values}: {error}") from None
        except OSError as error:
            raise UsageError(f"--config-file {values}: {error.strerror}") from None
        for name, value in settings.items():
            setattr(namespace, name, value)


_GROUPS = {
    "job": "the job",
    "output": "output",
    "hosts": "reaching other hosts",
    "mpi": "MPI",
    "diagnostics": "timeline and stalls",
    "tuning": "tuning",
    "elastic": "elastic jobs",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser, for `parse` and for the reference manual."""
    parser = Parser(
        prog="casyncrun",
        usage="casyncrun -np N [options] COMMAND ...",
        description="Run COMMAND as N ranks under Open MPI's mpirun, and answer for how they end.",
        epilog="Exit status: 0 when every rank left with 0; otherwise that of the first rank that failed "
        "(128 + the signal's number for one that was killed), 2 for a command line that cannot be run.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="version", version=f"casyncrun {casync.__version__}")
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    for flag in FLAGS:
        arguments = dict(flag.arguments)
        if flag.dest == "config_file":
            arguments["action"] = _ReadConfigFile
        text = flag.help.replace("%", "%%")
        groups[flag.group].add_argument(*flag.names, **{"dest": flag.dest, "default": None, **arguments}, help=text)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="what each rank runs: a program, or train.py, which this Python runs",
    )
    return parser


def parse(argv: Sequence[str], allocated: Sequence[Host] = ()) -> Options:
    """The command line (without the program's name) as a value; UsageError where it cannot be meant.

    `allocated` are the hosts of the job that this is part of: where the line names none, their slots count.
    """
    given = build_parser().parse_args(list(argv))
    command = tuple(given.command[1:] if given.command[:1] == ["--"] else given.command)
    effects = [(flag, getattr(given, flag.dest)) for flag in FLAGS if getattr(given, flag.dest) is not None]
    for flag, _ in effects:
        if isinstance(flag.effect, Refused):
            raise UsageError(f"{flag.spelling} is not available: {flag.effect.instead}")
    if given.hosts is not None and given.hostfile is not None:
        raise UsageError("--hostfile is not allowed with --hosts: name the hosts in one place")
    named = _hosts(given.hosts, given.hostfile)
    hosts = named or tuple(allocated)
    if not given.check_build:
        _check_size(given.num_proc, hosts, "raise HOST:SLOTS" if named else "ask Slurm for more tasks")
        if not command:
            raise UsageError("no command to run")
    exports = given.exports or []
    for item in exports:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*(=|$)", item):
            raise UsageError(f"-x {item}: not VAR or VAR=VALUE")
    durations = {"start_timeout": given.start_timeout, "grace": given.grace}
    for name, seconds in durations.items():
        if seconds is not None and seconds < 0:
            raise UsageError(f"{name.replace('_', ' ')} {seconds}: not a duration")
    if given.rsh_agent is not None and (given.ssh_port is not None or given.ssh_identity_file is not None):
        raise UsageError(f"--ssh-port and --ssh-identity-file are ssh's: give them to {given.rsh_agent} itself")
    return Options(
        command=command,
        num_proc=given.num_proc if given.num_proc is not None else sum(host.slots for host in hosts),
        hosts=named,
        exports=(*_variables(effects), *exports),
        rsh_agent=given.rsh_agent,
        ssh_port=given.ssh_port,
        ssh_identity_file=given.ssh_identity_file,
        mpi_args=tuple(
            word for text in (given.mpi_args or []) + (given.binding_args or []) for word in shlex.split(text)
        ),
        networks=tuple(net.strip() for text in given.networks or [] for net in text.split(",") if net.strip()),
        **{name: seconds for name, seconds in durations.items() if seconds is not None},
        output_folder=given.output_filename,
        timestamps=bool(given.prefix_output_with_timestamp),
        remarks=_remarks(effects),
        dry_run=bool(given.dry_run),
        check_build=bool(given.check_build),
        verbose=bool(given.verbose),
    )


def _check_size(num_proc: int | None, hosts: Sequence[Host], remedy: str) -> None:
    slots = sum(host.slots for host in hosts)
    if num_proc is None and not hosts:
        raise UsageError("say how many ranks to start: -np N")
    if num_proc is not None and num_proc < 1:
        raise UsageError(f"-np {num_proc}: at least one rank")
    if num_proc is not None and hosts and num_proc > slots:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts[:8]) + ", ..." * (len(hosts) > 8)
        raise UsageError(
            f"-np {num_proc} is more than the {slots} slots of the hosts ({listed}); {remedy} or lower -np"
        )


def _variables(effects: Sequence[tuple[Flag, Any]]) -> tuple[str, ...]:
    """`VAR=VALUE` of the flags that become variables; of two for one variable the later in the table wins."""
    found: dict[str, str] = {}
    for flag, value in effects:
        if isinstance(flag.effect, Variable) and (text := flag.effect.text(value)) is not None:
            found[flag.effect.name] = text
    return tuple(f"{name}={text}" for name, text in found.items())


def _remarks(effects: Sequence[tuple[Flag, Any]]) -> tuple[str, ...]:
    """One line for the flags without effect, per reason."""
    by_reason: dict[str, list[str]] = {}
    for flag, _ in effects:
        if isinstance(flag.effect, Nothing):
            by_reason.setdefault(flag.effect.why, []).append(flag.spelling)
    return tuple(f"{', '.join(names)}: no effect: {why}" for why, names in by_reason.items())


def _hosts(listed: str | None, file: str | None) -> tuple[Host, ...]:
    try:
        if listed is not None:
            return parse_hosts(listed)
        if file is not None:
            return parse_hostfile(Path(file).read_text(encoding="utf-8-sig"))  # editors put a mark before UTF-8
    except HostError as error:
        raise UsageError(str(error)) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--hostfile {file}: byte {error.start} is no UTF-8: save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"--hostfile {file}: {error.strerror}") from None
    return ()

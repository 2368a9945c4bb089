"""The command `casyncrun`: parse, look at the machine, try what would fail later, run."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from casync.launcher.mpirun import Launch, MpiNotFound, compose, gather_facts
from casync.launcher.options import Options, UsageError, parse
from casync.launcher.preflight import hidden, missing, unreachable, with_python
from casync.launcher.rank.wire import LAUNCHER, TOKEN
from casync.launcher.slurm import allocation
from casync.rendezvous.slurm_hosts import HostError

__all__ = ["StartError", "main", "prepare"]


class StartError(Exception):
    """The job cannot start; `status` is casyncrun's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def prepare(options: Options, environ: Mapping[str, str]) -> Launch:
    """The command that starts these ranks, tried as far as that goes without starting them."""
    try:
        facts = gather_facts(environ)
        launch = compose(options, facts, environ, exports=(LAUNCHER, TOKEN))
    except (MpiNotFound, HostError) as error:
        raise StartError(1, str(error)) from None
    hosts = [host.name for host in options.hosts or facts.allocation]
    if not launch.remote or facts.local_names & set(hosts):
        if absent := missing(options.command, os.getcwd(), environ.get("PATH")):
            raise StartError(*absent)
        if reason := hidden(options.command, os.getcwd(), environ):
            raise StartError(2, reason)
    if launch.by_ssh and (failure := unreachable(launch.by_ssh, options, environ)):
        raise StartError(1, failure)
    return launch


def main(argv: Sequence[str] | None = None) -> int:
    """Run `casyncrun`; returns its exit status."""
    environ = dict(os.environ)
    try:
        options = parse(sys.argv[1:] if argv is None else argv, allocation(environ))
    except (UsageError, HostError) as error:
        sys.stderr.write(f"casyncrun: {error}\nTry `casyncrun --help`.\n")
        return 2
    if options.check_build:
        from casync.launcher.doctor import check_build  # late: it imports the frameworks' metadata

        sys.stdout.write(check_build())
        return 0
    options = replace(options, command=with_python(options.command, os.getcwd(), environ.get("PATH")))
    try:
        _occupy_closed()
        return _run(options, environ)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        sys.stderr.write(
            f"casyncrun: {error.strerror}: casyncrun may have {most} at once, and needs more. Raise the limit: "
            "ulimit -n 65536\n"
        )
        return 1


def _occupy_closed() -> None:
    """Have stdin, stdout and stderr stay unwritable where they are closed: what is opened next would get their numbers,
    and the job's output with them.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    os.close(descriptor)


def _run(options: Options, environ: Mapping[str, str]) -> int:
    try:
        if options.dry_run:
            return _show(compose(options, gather_facts(environ), environ))
        launch = prepare(options, environ)
    except (MpiNotFound, StartError) as error:
        sys.stderr.write(f"casyncrun: {error}\n")
        return error.status if isinstance(error, StartError) else 1
    from casync.launcher.job import Job

    return Job(options, launch, environ).run()


def _show(launch: Launch) -> int:
    sys.stderr.write(f"casyncrun: {launch.note}\n")
    sys.stdout.write(launch.shell() + "\n")
    return 0

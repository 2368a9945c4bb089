"""`casync.run`: a function on N ranks, called from a program or a notebook."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from casync.errors import InvalidArgumentError, JobError, NotAvailableError
from casync.launcher import task
from casync.launcher.cli import StartError, prepare
from casync.launcher.job import Job
from casync.launcher.options import Options, UsageError, parse
from casync.launcher.slurm import allocation
from casync.rendezvous.slurm_hosts import HostError

__all__ = ["results_of", "run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `num_proc` ranks, as casyncrun would start them; returns what each returned.

        accuracies = casync.run(train, args=(0.1,), np=4)

    The results are in the order of the ranks. The function travels by cloudpickle: one that is defined in a script or a
    notebook takes along what it refers to, one of a module is imported on the rank. The other arguments are casyncrun's
    flags of that name; `np` is `num_proc`, `executable` the Python of the ranks.

    Raises `JobError` if a rank raised or died, naming the first one, with its traceback; the rank's own exception is
    its cause. `InvalidArgumentError`, a ValueError, for arguments that cannot be meant, and `NotAvailableError` for
    those of elastic jobs.
    """
    elastic = {
        "min_num_proc": min_num_proc,
        "max_num_proc": max_num_proc,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
        "min_np": min_np,
        "max_np": max_np,
    }
    for name, value in elastic.items():
        if value is not None:
            raise NotAvailableError(
                f"casync.run({name}={value!r}): jobs have a fixed number of ranks. Leave it out; to go on with another "
                "number, save with casync.save_state and run again"
            )
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise InvalidArgumentError("Argument use_gloo and use_mpi only allow one set True.")
    settings = {
        "--num-proc": num_proc if np is None else np,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--mpi-args": mpi_args,
        "--network-interface": network_interface,
        "--network-interfaces": network_interfaces,
    }
    switches = {"--disable-cache": disable_cache, "--verbose": verbose, "--gloo": use_gloo, "--mpi": use_mpi}
    line = [f"{flag}={value}" for flag, value in settings.items() if value is not None]
    line += [flag for flag, wanted in switches.items() if wanted]
    environ = dict(os.environ)
    command = [executable or sys.executable, "-m", "casync.launcher.task"]
    try:
        options = parse([*line, "--", *command], allocation(environ))
    except (UsageError, HostError) as error:
        raise InvalidArgumentError(f"casync.run: {error}") from None
    return results_of(options, environ, task.pack(func, args, kwargs or {}))


def results_of(
    options: Options,
    environ: Mapping[str, str],
    stdin: bytes,
    write: Callable[[str, bytes], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Any]:
    """Run a job, and return what its ranks returned, in their order. `options.command` runs `casync.launcher.task`,
    `stdin` is what `task.pack` made. `write` and `progress` are `Job`'s.

    Raises `JobError` as `run` does, and KeyboardInterrupt after Ctrl-C. Only the main thread hears of Ctrl-C.
    """
    try:
        job = Job(options, prepare(options, environ), environ, stdin, write, progress)
    except StartError as error:
        raise JobError(str(error)) from None
    status = job.run()
    if job.ledger.interrupt == signal.SIGINT:
        raise KeyboardInterrupt
    found = {rank: task.unpack(bytes(written)) for rank, written in job.results.items()}
    first = job.ledger.first_failed
    if first is not None and isinstance(raised := found.get(first), task.Raised):
        host = job.ledger.ranks[first].host
        raise JobError(
            f"rank {first} on host {host} raised {raised.what}\n\n{raised.trace}\n{job.ledger.verdict().text}",
            peer=first,
        ) from raised.exception
    if status:
        raise JobError(job.ledger.verdict().text, peer=first)
    values = []
    for rank in range(options.num_proc):
        result = found.get(rank)
        if not isinstance(result, task.Returned):
            raise JobError(f"rank {rank} left with status 0 before its function had returned", peer=rank)
        values.append(result.value)
    return values

"""Whether this process is one of several, and by what they find each other. Pure: environment in, decision out.

started = choose(os.environ)
started.kind      # "alone", "mpi" or "tcp"
started.reason    # "torchrun set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from casync.config.settings import TRANSPORTS
from casync.errors import InvalidArgumentError, StartError
from casync.rendezvous.slurm_hosts import expand_hosts

__all__ = ["Started", "choose"]

_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SLURM_OWN_STEPS = 0xFFFFFFF0  # that of the batch script is one of those above
_SLURM_PORTS = range(15000, 45000)
_MOST_PROCESSES = 1 << 20
_LAST_PORT = 65535
_MOST_DIGITS = 20  # of any number here
_RANKS = ("RANK", "JOB_COMPLETION_INDEX", *_MPI_RANKS)
_MEANING = {"RANK": "the number of this process, from 0", "WORLD_SIZE": "how many processes there are"}
_ALONE = "If this process is meant to be alone, set CASYNC_SIZE=1"


@dataclass(frozen=True)
class Started:
    """How this process was started. `rank`, `size` and what follows them are of kind "tcp" alone.

    `job` tells this start of this job from others that meet in the same store. `is_served`: a server of the launcher
    listens at `address` and `port`; else rank 0 does.
    """

    kind: Literal["alone", "mpi", "tcp"]
    reason: str
    rank: int = 0
    size: int = 1
    address: str = ""
    port: int = 0
    job: str = ""
    is_served: bool = False


def choose(
    environ: Mapping[str, str],
    transport: str = "auto",
    *,
    has_store: bool = False,
    group: tuple[int, int] | None = None,
) -> Started:
    """Return what the launcher's variables say. `transport` is one of `config.TRANSPORTS`. With `has_store` processes
    have a place to meet already, and need no address. `group` is this process's rank in `torch.distributed`, and how
    many there are, if that is initialised.

    Raises `CasyncError`, with the remedy, if this process was clearly meant to be one of several and it cannot be known
    how it finds the others: N worlds of one would train N models without a word.
    """
    if transport not in TRANSPORTS:
        raise InvalidArgumentError(f"CASYNC_TRANSPORT={transport!r}: it must be one of {', '.join(TRANSPORTS)}")
    for name in ("CASYNC_SIZE", *_MPI_SIZES):  # the first is the user's word, also in a child of a rank
        if _count(environ, name) == 1:
            return Started("alone", f"{name} is 1")
    by_mpi = next((name for name in (*_MPI_SIZES, "PMIX_RANK") if environ.get(name)), None)
    if transport == "mpi" and by_mpi is None:
        raise StartError(
            "CASYNC_TRANSPORT=mpi, but mpirun did not start this process: start it with `casyncrun -np N python ...`"
        )
    if by_mpi is not None and transport != "tcp" and not has_store:
        return Started("mpi", f"mpirun, or what it is part of, set {by_mpi}")
    found = _by_address(environ, has_store or group is not None)
    if found is not None:
        return found
    if group is not None:
        reason = "torch.distributed is initialised"
        return Started("tcp", reason, *group) if group[1] > 1 else Started("alone", f"{reason}, with one process")
    if (half := _half_said(environ, has_store)) is not None:
        return half
    if transport == "tcp" and by_mpi is not None:
        raise StartError(
            f"CASYNC_TRANSPORT=tcp, and mpirun set {by_mpi}: the processes need MASTER_ADDR and MASTER_PORT too, to "
            "find each other without MPI. casyncrun sets them"
        )
    for launcher, size, evidence in (
        ("casyncrun or horovodrun", "CASYNC_SIZE", "CASYNC_SIZE"),
        ("casyncrun or horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
    ):
        if evidence in environ and (several := _count(environ, size)) > 1:
            raise StartError(
                f"{size}={several} says that this is one of {several} processes started by {launcher}, but MPI does "
                f"not know of them, so each would be a world of its own: start them with `casyncrun -np {several} "
                f"python ...`. {_ALONE}"
            )
    return Started("alone", "no launcher's variables say that there are other processes")


def _by_address(environ: Mapping[str, str], has_store: bool) -> Started | None:
    """One of several that meet at an address, or in a store; None for a process of which nothing says so."""
    rank = _first(environ, *_RANKS)
    if rank is not None and environ.get("WORLD_SIZE"):
        size = _count(environ, "WORLD_SIZE")
        started = _among(environ, "RANK and WORLD_SIZE", environ[rank], size, has_store)
        if started.kind == "tcp" and environ.get("TORCHELASTIC_RUN_ID"):
            job = f"{environ['TORCHELASTIC_RUN_ID']}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            return _of_job(started, "torchrun set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", job, served)
        return started
    if "SLURM_PROCID" in environ:
        size = _count(environ, "SLURM_STEP_NUM_TASKS") or (_count(environ, "SLURM_NTASKS") if _is_step(environ) else 0)
        return _by_slurm(environ, size, has_store) if size > 0 else None
    return None


def _half_said(environ: Mapping[str, str], has_store: bool) -> Started | None:
    """One of several by all that is said, but not which one, or of how many: an error with what is missing. None where
    less is said than that: WORLD_SIZE, RANK or an address by itself may be left over from something else.
    """
    rank, has_size = _first(environ, *_RANKS), bool(environ.get("WORLD_SIZE"))
    has_address = has_store or bool(environ.get("MASTER_ADDR"))
    if not has_address or (rank is None) is not has_size:
        return None
    if has_size and _count(environ, "WORLD_SIZE") == 1:
        return Started("alone", "WORLD_SIZE says that this is the only process")
    missing, said = ("RANK", "WORLD_SIZE") if rank is None else ("WORLD_SIZE", rank)
    place = "a store is given" if has_store else f"MASTER_ADDR={environ['MASTER_ADDR']}"
    raise StartError(
        f"{said}={environ[said]!r} and {place} say that this is one of several processes, but {missing} is not set: "
        f"set it to {_MEANING[missing]}, or start them with torchrun or casyncrun. {_ALONE}"
    )


def _is_step(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this. A plain process in an sbatch script has a rank too, and the number of its job's
    tasks, and is alone.
    """
    step = _whole(environ.get("SLURM_STEP_ID", ""))
    return step is not None and step < _SLURM_OWN_STEPS


def _of_job(started: Started, reason: str, job: str, served: bool) -> Started:
    return replace(started, reason=reason, job=job, is_served=served)


def _among(environ: Mapping[str, str], names: str, rank: str, size: int, has_store: bool) -> Started:
    if size == 1:
        return Started("alone", f"{names} say that this is the only process")
    number = _whole(rank)
    if number is None or number >= size:
        raise StartError(
            f"{names} say that this is rank {rank!r} of {size}: a rank is a number from 0 to {size - 1}. Give each "
            f"process its own. {_ALONE}"
        )
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not has_store and not (address and port):
        missing = " and ".join(name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name))
        raise StartError(
            f"{names} say that this is one of {size} processes, but not where they find each other: set {missing} to "
            f"the host of rank 0 and a free port there, or start them with torchrun or casyncrun. {_ALONE}"
        )
    door = _whole(port) or 0
    if not has_store and not 0 < door <= _LAST_PORT:
        raise StartError(
            f"MASTER_PORT={port!r} is not a port: it must be a whole number from 1 to {_LAST_PORT}. Set it to a free "
            "port of the host of rank 0, the same for all processes"
        )
    return Started("tcp", f"{names} are set", number, size, address, door)


def _by_slurm(environ: Mapping[str, str], size: int, has_store: bool) -> Started:
    """srun started this, without an MPI. Rank 0 is on the step's first host; the port follows from the step's number,
    so that two steps of one host have two.
    """
    step = f"{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
    filled = dict(environ)
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    if listed:
        filled.setdefault("MASTER_ADDR", expand_hosts(listed)[0])
    numbers = [_whole(part) or 0 for part in step.split(".")]
    filled.setdefault("MASTER_PORT", str(_SLURM_PORTS[sum(7919 * n for n in numbers) % len(_SLURM_PORTS)]))
    started = _among(filled, "SLURM_PROCID and SLURM_NTASKS", environ["SLURM_PROCID"], size, has_store)
    return started if started.kind == "alone" else _of_job(started, started.reason, step, False)


def _first(environ: Mapping[str, str], *names: str) -> str | None:
    return next((name for name in names if environ.get(name)), None)


def _count(environ: Mapping[str, str], name: str) -> int:
    """How many processes a variable says that there are; 0 if it is not set. A typing error is no world of one."""
    text = environ.get(name, "")
    if not text:
        return 0
    count = _whole(text)
    if count is None or not 0 < count <= _MOST_PROCESSES:
        raise StartError(
            f"{name}={text!r} is not a number of processes: it must be a whole number from 1 to {_MOST_PROCESSES}. Set "
            f"it to {_MEANING['WORLD_SIZE']}, or unset it. {_ALONE}"
        )
    return count


def _whole(text: str) -> int | None:
    """The number that these decimal digits are, with blanks around them as torch allows; None for any other text."""
    digits = text.strip()
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    return int(digits) if is_number else None

"""A rank's place in the job: what says it to the rank, and how the rank says it to its command."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

__all__ = ["free_port", "mpi_place", "rank_names"]

# By casync.launcher.starter.
_WITHOUT_MPI = (
    "CASYNC_STARTED_RANK",
    "CASYNC_STARTED_SIZE",
    "CASYNC_STARTED_LOCAL_RANK",
    "CASYNC_STARTED_LOCAL_SIZE",
)
# The variables in which whoever started a rank says rank, size, local rank and (Slurm does not) local size.
_STARTERS = (
    _WITHOUT_MPI,
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)


def mpi_place(environ: Mapping[str, str], hostname: str) -> dict[str, Any]:
    """Return what the environment says of this process's place. A value about its host is None where it does not say.

    LookupError where it does not even say rank and size.
    """
    for rank, size, local_rank, local_size in _STARTERS:
        if rank in environ and size in environ:
            return {
                "rank": int(environ[rank]),
                "size": int(environ[size]),
                "local_rank": int(environ[local_rank]) if local_rank in environ else None,
                "local_size": int(environ[local_size]) if local_size in environ else None,
                "hostname": hostname,
            }
    names = ", ".join(dict.fromkeys(starter[0] for starter in _STARTERS))
    raise LookupError(f"none of {names} is set; start it through casyncrun")


def free_port() -> int:
    """A port of this host on which nobody listens, for torch."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def rank_names(place: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that tell the command its place; torch's address only where the user has not set one."""
    names: dict[str, str] = {"PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1")}
    for key in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname"):
        if place.get(key) is not None:
            names |= {f"{prefix}_{key.upper()}": str(place[key]) for prefix in ("CASYNC", "HOROVOD")}
    # Horovod's words: what works without MPI is called gloo.
    by_sockets = _WITHOUT_MPI[0] in environ or environ.get("CASYNC_TRANSPORT") == "tcp"
    names["HOROVOD_CONTROLLER"] = names["HOROVOD_CPU_OPERATIONS"] = "gloo" if by_sockets else "mpi"
    torch_names = {
        "RANK": place["rank"],
        "WORLD_SIZE": place["size"],
        "LOCAL_RANK": place.get("local_rank"),
        "LOCAL_WORLD_SIZE": place.get("local_size"),
    }
    address = {"MASTER_ADDR": place.get("master_addr"), "MASTER_PORT": place.get("master_port")}
    torch_names |= {name: value for name, value in address.items() if name not in environ}
    return names | {name: str(value) for name, value in torch_names.items() if value is not None}

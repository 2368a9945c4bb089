"""Horovod's environment variables in one table: those that `casync.config` reads, and why others have no effect.

The table of the manual is made from it (tools/tables.py).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping

from casync.config.settings import Config

__all__ = ["WITHOUT_EFFECT", "manual", "remarks", "tell"]

NOTHING_TO_TUNE = "there are no cycles and no fusion buffer to tune; compression='auto' measures links and codecs"
DIRECT_ALLGATHER = "in an allgather each rank sends its rows to every other rank"
NO_TORUS = "there is no torus; CASYNC_TOPOLOGY names one of the topologies that there are"
NO_FUSION = "nothing is copied into a fusion buffer: small tensors that are ready share a message"
NO_CYCLE = "there are no cycles: a tensor goes when it is ready"
NO_CACHE = "what ranks agreed on is kept for 1,024 to 16,384 tensors, as many as are used again"
NO_NCCL = "there is one stream for NCCL"
STREAMS_WAIT = "the program's stream waits for a result on a GPU, and the program's thread does not"
NO_NVTX = "there are no NVTX ranges; CASYNC_TIMELINE shows what happens to each tensor"
NO_XLA = "it concerns operations that XLA compiles, which are not there yet"
NO_GLOO = "gloo is not used; CASYNC_PEER_TIMEOUT_SECONDS is how long a rank may be silent"
ONLY_MPI = "CASYNC_TRANSPORT chooses between MPI and CaSync's own sockets"
THREADS = "CaSync needs all of MPI's thread support (MPI_THREAD_MULTIPLE)"
AFFINITY = "threads are not pinned; CASYNC_WORKER_THREADS is how many there are"
TIMESTAMPS = "messages go through Python's logger `casync`: its handlers decide what stands before a line"
ADASUM = "CASYNC_PARTITION_BYTES is the size of the pieces in which tensors travel"

WITHOUT_EFFECT: Mapping[str, str] = {
    "HOROVOD_FUSION_THRESHOLD": NO_FUSION,
    "HOROVOD_DISABLE_GROUP_FUSION": NO_FUSION,
    "HOROVOD_CYCLE_TIME": NO_CYCLE,
    "HOROVOD_CACHE_CAPACITY": NO_CACHE,
    "HOROVOD_HIERARCHICAL_ALLGATHER": DIRECT_ALLGATHER,
    "HOROVOD_TORUS_ALLREDUCE": NO_TORUS,
    "HOROVOD_AUTOTUNE": NOTHING_TO_TUNE,
    "HOROVOD_AUTOTUNE_LOG": NOTHING_TO_TUNE,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": NOTHING_TO_TUNE,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": NOTHING_TO_TUNE,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": NOTHING_TO_TUNE,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": NOTHING_TO_TUNE,
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": ADASUM,
    "HOROVOD_CONTROLLER": ONLY_MPI,
    "HOROVOD_CPU_OPERATIONS": ONLY_MPI,
    "HOROVOD_CCL_CACHE": ONLY_MPI,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": NO_GLOO,
    "HOROVOD_MPI_THREADS_DISABLE": THREADS,
    "HOROVOD_THREAD_AFFINITY": AFFINITY,
    "HOROVOD_BATCH_D2D_MEMCOPIES": NO_FUSION,
    "HOROVOD_NUM_NCCL_STREAMS": NO_NCCL,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": STREAMS_WAIT,
    "HOROVOD_DISABLE_NVTX_RANGES": NO_NVTX,
    "HOROVOD_ENABLE_XLA_OPS": NO_XLA,
    "HOROVOD_LOG_HIDE_TIME": TIMESTAMPS,
}
"""Variable -> why it has no effect. Those with which Horovod is built are not among them: it does not read them at run
time either."""

# These values ask for what is so here anyway: a switch that is off, no fusion, no cycles, no cache; MPI, or none of
# it, which is what "gloo" means in Horovod. casyncrun says whichever is so.
_AS_HERE = frozenset(("", "0", "mpi"))
_GLOO_IS_NONE = frozenset(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"))
_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


def remarks(environ: Mapping[str, str]) -> list[str]:
    """One line per reason for the variables that are set and have no effect."""
    by_reason: dict[str, list[str]] = {}
    by_mpi = any(environ.get(name) for name in _BY_MPI) and environ.get("CASYNC_TRANSPORT") != "tcp"
    for name, why in WITHOUT_EFFECT.items():
        value = environ.get(name, "").lower()
        if value not in _AS_HERE and not (value == "gloo" and name in _GLOO_IS_NONE and not by_mpi):
            by_reason.setdefault(why, []).append(name)
    return [f"{', '.join(names)}: no effect: {why}" for why, names in by_reason.items()]


def tell(environ: Mapping[str, str]) -> None:
    """Log the remarks, each once in a process."""
    for line in remarks(environ):
        _tell(line)


@functools.cache
def _tell(line: str) -> None:
    logging.getLogger("casync").warning(line)


def manual() -> str:
    """The table of the manual."""
    rows = []
    for item in dataclasses.fields(Config):
        ours, *theirs = item.metadata["variables"]
        rows += [(f"`{name}`", f"read as `{ours}`") for name in theirs]
    reasons = dict.fromkeys(WITHOUT_EFFECT.values())
    for why in reasons:
        names = [f"`{name}`" for name, reason in WITHOUT_EFFECT.items() if reason == why]
        rows.append((", ".join(names), f"no effect: {why}"))
    return "".join(f"| {left} | {right} |\n" for left, right in [("Horovod's variable", "here"), ("---", "---"), *rows])

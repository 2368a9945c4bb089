"""The default session as a training script sees it: rank, size, counters. Every adaptor has these functions."""

from __future__ import annotations

from casync.observe.metrics import Metrics
from casync.plan.plans import Plans
from casync.session import default
from casync.session.default import GLOBAL_PROCESS_SET as global_process_set
from casync.session.default import add_process_set, init, is_initialized, remove_process_set, shutdown
from casync.session.process_sets import ProcessSet

__all__ = [
    "add_process_set",
    "counters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "plans",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def rank() -> int:
    """This process's number in the world, from 0. ValueError before `init()`, as for all functions of this module."""
    return default.session().world.rank


def size() -> int:
    """How many processes the world has."""
    return default.session().world.size


def local_rank() -> int:
    """This process's number among those of its host, from 0: which GPU to take."""
    return default.session().world.local_rank


def local_size() -> int:
    """How many processes this host has."""
    return default.session().world.local_size


def cross_rank() -> int:
    """This process's number among those that have the same local rank, one per host."""
    return default.session().world.cross_rank


def cross_size() -> int:
    """How many hosts have a process of this local rank."""
    return default.session().world.cross_size


def is_homogeneous() -> bool:
    """Whether every host has equally many processes."""
    return default.session().world.is_homogeneous


def counters() -> dict[str, int]:
    """Return what this process has cost since `init()`: `sent_bytes`, `received_bytes`, `sent_messages` and
    `received_messages` as the transport counts them (headers included), and `slot_bytes`, `residual_bytes`, `pool_peak`
    of memory held. All process sets together.
    """
    each = [session.counters() for session in default.process_sets().sessions.values()]
    return {name: sum(one[name] for one in each) for name in each[0]}


def metrics(process_set: ProcessSet = global_process_set) -> Metrics:
    """Return what this process has done in `process_set` since `init()`, in numbers: steps and their times, bytes by
    codec and peer, times of codecs, queues, memory, and which ranks are late. docs/metrics.md explains each.

    Always on. Returns at once, on any thread, also while another one waits. After `shutdown()` the last numbers of the
    global set.
    """
    return default.metrics(process_set)


def plans(process_set: ProcessSet = global_process_set) -> Plans:
    """How each allreduced tensor is synchronised, by name, as agreed on so far; alike on all ranks of `process_set`,
    but for `measured_s`.

    `casync.plan.write_plans("plan.json", hvd.plans())` saves them for another run with `CASYNC_PLAN_FILE=plan.json`.
    """
    return default.session_of(process_set).plans()


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Horovod's name for it: by number, the ranks of every process set in use."""
    return default.process_sets().ids_and_ranks()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a timeline of what this process does from now on, in place of an earlier one: a Chrome trace, which
    Perfetto (ui.perfetto.dev) opens, valid whenever it is read.

    Rank 0 writes `file_path`, rank r another file with `.r` appended; `casync trace merge` puts them together.
    `mark_cycles` marks the turns of the progress thread. ValueError if the file cannot be written.
    """
    default.session().start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline; does nothing if there is none."""
    default.session().stop_timeline()

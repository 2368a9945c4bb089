"""The default session: the one that `init()` opens and `hvd.rank()` speaks of, and its process sets.

It is the only state of a process that CaSync keeps outside a `Session`. No framework is imported here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from casync._constants import HANDLE_BITS
from casync.codecs import specs as codecs
from casync.config.settings import Config
from casync.errors import CasyncError, InvalidArgumentError
from casync.observe import prometheus as exposition
from casync.observe.metrics import Metrics
from casync.plan.phases import is_list
from casync.plan.topology import check_topology, topology_of
from casync.session.process_sets import GLOBAL_PROCESS_SET, ProcessSet, ProcessSets, is_communicator, ranks_of
from casync.session.session import Session
from casync.transport import job as jobs

__all__ = [
    "GLOBAL_PROCESS_SET",
    "add_process_set",
    "checked",
    "init",
    "is_initialized",
    "metrics",
    "metrics_of_all_sets",
    "owner_of",
    "process_sets",
    "remove_process_set",
    "session",
    "session_of",
    "shutdown",
]

_NOT_INITIALIZED: Final = "CaSync has not been initialized; use hvd.init()."


class _Current:
    """Holder of the default session. `lock` guards opening and closing; reading `session` needs none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None
        self.sets: ProcessSets | None = None
        self.page: exposition.Page | None = None
        self.last_metrics: dict[int, Metrics] = {}
        """The metrics of the sessions that the last `shutdown()` closed, by the number of their set."""
        # How often each world was opened, by its ranks: they share this number, whatever other ranks have done.
        self.opened: dict[tuple[int, ...], int] = {}

    def next_tag(self, peers: Sequence[int] | None, job: jobs.Job) -> int:
        ranks = tuple(range(len(job.hosts)) if peers is None else peers)
        tag = self.opened.get(ranks, 0)
        self.opened[ranks] = tag + 1
        return tag


_current = _Current()


def init(comm: Any = None, process_sets: Any = None, *, store: Any = None, **settings: Any) -> None:
    """Open the default session; while it is open, only take `process_sets` into use, once. Collective over the ranks.

    Args:
        comm: None for all ranks of the job, or a list of them, this one among them, or an mpi4py communicator. Ranks
            that are not in it need not call.
        process_sets: a list of `ProcessSet` for operations among some of the ranks, the same on all ranks; or
            "dynamic", to add them later: it sets HOROVOD_DYNAMIC_PROCESS_SETS=1.
        store: where the processes find each other, without MPI, if not at MASTER_ADDR: a `torch.distributed.Store`, or
            a folder that all of them see and no other job uses. RANK and WORLD_SIZE say who they are.
        settings: fields of `casync.config.Config`, which win over the environment.

    Raises `StartError` if the processes of the job cannot form one world, with what to do. After a ValueError for two
    sets of the same ranks the session is open, as in Horovod: call again with a list that has them once.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise InvalidArgumentError(f"process_sets={process_sets!r}: give a list of ProcessSet, or 'dynamic'")
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        process_sets = None
    peers = ranks_of(comm) if comm else None
    wanted = None if process_sets is None else list(process_sets)
    with _current.lock:
        sets, is_new = _current.sets, _current.sets is None
        if sets is None:
            config = _checked(Config.from_environment(os.environ, **settings))
            job = jobs.join(os.environ, config, store)
            opened = Session(config, tag=_current.next_tag(peers, job), peers=peers, job=job)
            sets = ProcessSets(opened, GLOBAL_PROCESS_SET)
            GLOBAL_PROCESS_SET.mpi_comm = comm if is_communicator(comm) else None
        try:
            if wanted is not None and not sets.is_started:
                sets.start(wanted)
            if is_new:
                _current.page = _page_of(sets)
        except BaseException:
            if is_new:
                sets.close()
            raise
        _current.session, _current.sets = sets.sessions[0], sets
        if wanted is not None:
            sets.take(wanted)


def _checked(config: Config) -> Config:
    """A codec that the core does not know, and a topology that there is not, are refused before ranks meet."""
    checks: dict[str, Callable[[Any], object]] = {"compression": codecs.rules_of, "topology": _check_topology}
    for name, check in checks.items():
        given = getattr(config, name)
        try:
            check(given)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}={given!r}: {error}") from None
    return config


def _check_topology(given: str) -> None:
    from casync import _core

    check_topology(given)
    text = topology_of(given)
    if is_list(text) and (why := _core.why_not_phases(text)):
        raise InvalidArgumentError(why)


def shutdown() -> None:
    """Close the default session; does nothing if there is none. `init()` may be called again afterwards."""
    with _current.lock:
        if _current.sets is not None:
            page, _current.page = _current.page, None
            if page is not None:
                page.close()
            closed = dict(_current.sets.sessions)
            jobs.leave(closed[0].job)
            _current.sets.close()
            with contextlib.suppress(CasyncError):  # a child process that was forked has none
                _current.last_metrics = {number: session.metrics() for number, session in closed.items()}
            _current.session = _current.sets = None


def _page_of(sets: ProcessSets) -> exposition.Page | None:
    """Where the metrics of `sets` are served, if that was asked for."""
    world = sets.sessions[0]
    config = world.config
    if not config.metrics_port:
        return None
    return exposition.Page(
        config.metrics_port, world.world.local_rank, lambda: _metrics_of(sets), config.metrics_address
    )


def _metrics_of(sets: ProcessSets) -> dict[int, Metrics]:
    return {number: session.metrics() for number, session in list(sets.sessions.items())}


def is_initialized() -> bool:
    """Whether the default session is open."""
    return _current.session is not None


def session() -> Session:
    """The default session. Raises `InvalidArgumentError` (a ValueError) before `init()`."""
    if _current.session is None:
        raise InvalidArgumentError(_NOT_INITIALIZED)
    return _current.session


def metrics(process_set: ProcessSet | None = None) -> Metrics:
    """Return what this process has done in `process_set` (all ranks by default), in numbers. Any thread, at once. After
    `shutdown()` what it had done by then. Raises `InvalidArgumentError` before `init()`.
    """
    if process_set is not None and process_set is not GLOBAL_PROCESS_SET:
        return checked(process_set).member_session().metrics()
    current = _current.session
    return _last_metrics()[0] if current is None else current.metrics()


def metrics_of_all_sets() -> dict[int, Metrics]:
    """Return the same for every process set that this process is in, by the set's number; 0 is the set of all ranks."""
    sets = _current.sets
    return dict(_last_metrics()) if sets is None else _metrics_of(sets)


def _last_metrics() -> dict[int, Metrics]:
    if not _current.last_metrics:
        raise InvalidArgumentError(_NOT_INITIALIZED)
    return _current.last_metrics


# --- process sets -----------------------------------------------------------------------------------------------------


def process_sets() -> ProcessSets:
    """The sets of the default session."""
    if _current.sets is None:
        raise InvalidArgumentError(_NOT_INITIALIZED)
    return _current.sets


def session_of(process_set: Any) -> Session:
    """This rank's session over `process_set`. Raises `InvalidArgumentError` on a rank that is not in the set."""
    if process_set is GLOBAL_PROCESS_SET:
        return _current.session or session()  # which raises: one call less for each operation
    return checked(process_set).member_session()


def checked(process_set: Any) -> ProcessSet:
    """`process_set`, which is in use. Raises `InvalidArgumentError` for anything else."""
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set={process_set!r} is not a ProcessSet")
    process_set.check_in_use()
    return process_set


def owner_of(handle: int) -> Session:
    """The session that gave out `handle`."""
    try:
        number = handle >> HANDLE_BITS
    except TypeError:
        call = ", or call it: sparse_allreduce_async() returned a function" if callable(handle) else ""
        raise InvalidArgumentError(f"handle={handle!r}: give what an asynchronous operation returned{call}") from None
    if number == 0:
        return _current.session or session()  # as in session_of
    owner = process_sets().sessions.get(number)
    if owner is None:
        raise InvalidArgumentError(f"handle {handle} is of process set {number}, which was removed")
    return owner


def add_process_set(process_set: Any) -> ProcessSet:
    """Take `process_set`, a `ProcessSet` or a list of ranks, into use after `init()`; returns the set. Collective over
    all ranks.

    Raises ValueError without HOROVOD_DYNAMIC_PROCESS_SETS=1 or `init(process_sets="dynamic")`, and if a set of the same
    ranks is in use.
    """
    _require_dynamic("adding")
    return process_sets().add(process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set))


def remove_process_set(process_set: ProcessSet) -> bool:
    """End the use of `process_set`, which was added; what is outstanding in it ends with an error. Collective over all
    ranks.

    False if the set is not in use, or holds all ranks.
    """
    _require_dynamic("removing")
    return process_sets().remove(process_set)


def _require_dynamic(what: str) -> None:
    if not session().config.dynamic_process_sets:
        raise InvalidArgumentError(
            f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1, or call hvd.init(process_sets='dynamic'), to allow {what} process "
            "sets after hvd.init()"
        )

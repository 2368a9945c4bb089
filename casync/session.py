"""A session: this process's membership in one world of ranks.

`Session` adds to the compiled core what belongs to a Python process: where the world comes from, memory that stays
alive while an operation is outstanding, and an end in good order however the program leaves.

    with Session(Config(compression="onebit")) as session:
        ...

Adaptors keep one default session (`casync.adaptor`); several explicit ones may live in one process.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import FrameType, ModuleType, TracebackType
from typing import Any

from casync import forks, horovod_variables
from casync.config import Config
from casync.errors import SESSION_IS_OVER, CasyncError, InvalidArgumentError, PeerFailureError
from casync.logs import set_level, warning_after
from casync.plan import GradientPlan, PlanError, read_plans
from casync.world import World, started_by_mpi

__all__ = ["HANDLE_BITS", "Session", "call_site"]

HANDLE_BITS = 48
"""Above these a handle has the number of its session."""

_LOG = logging.getLogger("casync")
# How the core begins the text of a PeerFailureError (engine/engine.cc, engine/heartbeat.cc).
_LOST_PEER = re.compile(r"rank (\d+) ")
# How it begins the text about a plan of the plan file that does not fit (planner/measured_planning.cc).
_UNFIT_PLAN = "the plan given for tensor "
# How the core calls a codec from a file of the user's own.
_OWN_FILE = re.compile(r"\w+@[0-9a-f]{8}")
# Frames of these packages are never where a user's program submitted something.
_NOT_THE_USER = frozenset({"casync", "torch"})


def _read_plan_file(path: str) -> dict[str, GradientPlan]:
    """The plans in the file `path`; none for an empty path. Any reason why they cannot be used is an
    `InvalidArgumentError` that names file and remedy.
    """
    if not path:
        return {}
    from casync import _core

    try:
        plans = read_plans(path)
        for name, plan in plans.items():
            if _OWN_FILE.match(plan.codec):  # which is known only when the program has named the file
                continue
            try:
                _core.check_codec(plan.codec)
            except InvalidArgumentError as error:
                raise PlanError(f"{path}: gradient {name!r}: {error}") from None
    except (OSError, PlanError) as error:
        raise InvalidArgumentError(
            f"the plan file cannot be used: {error}. Write one with casync.plan.write_plans(path, hvd.plans()), or "
            "unset CASYNC_PLAN_FILE (plan_file=) to have all tensors planned anew"
        ) from None
    return plans


def _place(frame: FrameType, line: int) -> str:
    path = frame.f_code.co_filename
    here = os.getcwd() + os.sep
    return f"{path.removeprefix(here)}:{line}"


def call_site() -> str:
    """`file:line` of the innermost frame outside CaSync and the framework. A few µs: call it at a name's first use
    only.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USER:
            return _place(frame, frame.f_lineno)
        frame = frame.f_back
    return "?"


def _describe_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    """`Type: text at file:line`, the place being the innermost one in the user's own code."""
    text = "".join(traceback.format_exception_only(kind, value)).strip()
    place = ""
    while trace is not None:
        if not place or str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USER:
            place = f" at {_place(trace.tb_frame, trace.tb_lineno)}"
        trace = trace.tb_next
    return text + place


class Session:
    """One rank's membership in one world.

    Args:
        config: settings; None reads the environment.
        tag: tells sessions of the same peers apart. The k-th session that a rank has with these peers must have the
            same tag on all of them.
        peers: ranks of MPI's world that form this one, in order; None: all. This process must be among them.
        number: the upper 16 bits of its handles, so that those of several sessions of this process are told apart.
        environ: where the launcher's variables are looked up.

    Raises `CasyncError` if the processes of a job cannot find each other, with what to do. Any thread may call any
    method; none holds the GIL while it waits.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        tag: int = 0,
        peers: Sequence[int] | None = None,
        number: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.config = Config.from_environment(environ) if config is None else config
        self.tag = tag
        set_level(self.config.log_level)
        self.registrations: dict[Any, int] = {}
        """What adaptors have defined so far: their own key -> the core's registration."""
        self.pending: dict[int, Any] = {}
        """Handle -> the tensors of an operation, kept alive until it is synchronised or the session ends."""
        self._interrupted: list[Any] = []
        """The tensors that were outstanding when the session failed: transfers may touch them until it is closed."""
        self.counts: dict[str, int] = {}
        """Kind of operation -> how many were given no name."""
        self.claims: dict[str, Any] = {}
        """Tensor name -> the `casync.state.Claim` of who keeps codec state under it."""
        self.loaded: set[str] = set()
        """Names of tensors whose codec state `casync.load_state` has put there, for an optimizer to come."""
        self._given_plans = _read_plan_file(self.config.plan_file)
        self._where_plans_are_from = (
            f"The plan is from {self.config.plan_file}: correct it there, or take it out to have the tensor planned "
            "anew"
        )
        self._has_failed = False
        after, who = self.config.stall_warning_s, "all ranks of the job" if peers is None else f"ranks {list(peers)}"
        with warning_after(
            after,
            f"init() has waited {after:g} s for others: {who} must call it with the same comm=, and the first init() "
            "in a process returns when all processes of the job have initialised MPI",
        ):
            transport, self.world = self._connect(environ, tag, peers)
        if self.world.rank == 0 and number == 0:
            horovod_variables.tell(environ)
        # Imported here, so that settings, errors and the launcher work without the compiled module.
        from casync import _core

        options = self.config.core_options(self.world.rank, self.world.size)
        options |= {"session_tag": tag, "number": number, "host_of": list(self.world.host_of)}
        options["fixed_plans"] = {name: asdict(plan) for name, plan in self._given_plans.items()}
        self.peers = list(range(self.world.size)) if peers is None else [int(rank) for rank in peers]
        """By rank, the number that MPI's world has for it."""
        self.core: Any = _core.Session(transport, options, _LOG.warning)
        self.shortcuts: Any = _core.Shortcuts(self.core, self.pending)
        """For a hot path: what names were last used with, as the user gives both."""
        self._is_open = True
        if self.config.timeline not in ("", "DYNAMIC"):
            self.start_timeline(self.config.timeline, self.config.timeline_mark_cycles)
        self._previous_hook = sys.excepthook
        self._hook = self._on_uncaught
        sys.excepthook = self._hook
        atexit.register(self.shutdown)
        forks.watch(self)
        _report().initialized()

    @staticmethod
    def _connect(environ: Mapping[str, str], tag: int, peers: Sequence[int] | None) -> tuple[Any, World]:
        if not started_by_mpi(environ):
            if peers is not None and list(peers) != [0]:
                raise InvalidArgumentError(f"peers {list(peers)}: this is a world of one, its only rank is 0")
            return None, World.of(0, [0])
        from casync import mpi

        module = mpi.load()
        mine, size = module.world_rank(), module.world_size()
        if (told := environ.get("CASYNC_SIZE", str(size))) != str(size):
            raise CasyncError(
                f"casyncrun started {told} ranks, but MPI knows of {size}: the program and casyncrun use different MPI "
                "libraries. `casync doctor` shows which"
            )
        ranks = list(range(size)) if peers is None else [int(rank) for rank in peers]
        if mine not in ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(size)):
            raise InvalidArgumentError(
                f"peers {ranks} must be distinct ranks of 0 to {size - 1}, with this one, {mine}"
            )
        hosts = module.hosts()
        world = World.of(ranks.index(mine), [hosts[rank] for rank in ranks])
        return module.connect(tag, None if peers is None else ranks), world

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    @property
    def is_open(self) -> bool:
        """Whether operations can be submitted: after `Session()`, before `shutdown()`."""
        return self._is_open

    def define(self, key: Any, name: str, signature: Mapping[str, Any]) -> int:
        """The core's registration of `name`, remembered under `key`; the place of the call goes into error messages."""
        try:
            registration: int = self.core.define(name, site=call_site(), **signature)
        except InvalidArgumentError as error:
            if not str(error).startswith(_UNFIT_PLAN):
                raise
            raise InvalidArgumentError(f"{error}. {self._where_plans_are_from}") from None
        self.registrations[key] = registration
        return registration

    def submit(
        self,
        registration: int,
        source: int,
        target: int,
        keep: Any,
        *,
        rows: int = 0,
        wake: bool = True,
        splits: Sequence[int] = (),
    ) -> int:
        """Submit memory at `source`, result to `target`; never blocks. `keep` is held until the handle is synchronised.

        `rows` are this rank's own, of an allgather; `splits` those for each rank, of an alltoall. `wake` false spares a
        switch of threads when the caller waits, or submits more, at once.
        """
        if splits:
            handle: int = self.core.submit(registration, source, target, rows, wake, splits)
        else:
            handle = self.core.submit(registration, source, target, rows, wake)
        self.pending[handle] = keep
        return handle

    def synchronize(self, handle: int) -> Any:
        """Wait for an operation, forget it and return what was kept. Raises what went wrong, a
        `HorovodInternalError`.
        """
        try:
            self.core.synchronize(handle)
        except CasyncError as error:
            self._failed((handle,), error)
            raise
        return self.pending.pop(handle)

    def synchronize_all(self, handles: Sequence[int]) -> None:
        """Wait for all, forget them, then raise the first failure. After Ctrl-C all are still outstanding."""
        try:
            self.core.synchronize_all(handles)
        except CasyncError as error:
            self._failed(handles, error)
            raise
        self._forget(handles)

    def synchronize_gather(self, handle: int) -> tuple[bytearray, list[int], Any]:
        """`synchronize` for an allgather or an alltoall: its bytes, the rows of them that each rank gave, and what was
        kept.
        """
        try:
            data, rows = self.core.synchronize_gather(handle)
        except CasyncError as error:
            self._failed((handle,), error)
            raise
        return data, rows, self.pending.pop(handle)

    def _failed(self, handles: Sequence[int], error: CasyncError) -> None:
        if isinstance(error, SESSION_IS_OVER) and not self._interrupted:
            self._interrupted = list(self.pending.values())
        self._forget(handles)
        self._has_failed = True
        if self.size > 1 and isinstance(error, SESSION_IS_OVER):
            from casync import mpi

            mpi.load().note_failure()  # MPI_Finalize would wait for a rank that may never come
        if isinstance(error, PeerFailureError) and (lost := _LOST_PEER.match(str(error))):
            _report().unreachable(self.peers[int(lost[1])], str(error))

    def _forget(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.pending.pop(handle, None)

    def counters(self) -> dict[str, int]:
        """Bytes and messages this rank sent and received since the session began, and memory it holds."""
        return dict(self.core.counters())

    def plans(self) -> dict[str, GradientPlan]:
        """The plans of all allreduced tensors that the ranks have agreed on so far, by name; alike on all ranks.

        `casync.plan.write_plans` puts them into a file, from which `CASYNC_PLAN_FILE` takes them in another run.
        """
        return {name: GradientPlan(**plan) for name, plan in self.core.plans().items()}

    def start_timeline(self, path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
        """Write what this rank does from now on as a Chrome trace, in place of an earlier one; Perfetto opens it.

        Rank 0 writes `path`, rank r another file with `.r` appended: `casync trace` puts them together. Raises
        `InvalidArgumentError` if it cannot be written.
        """
        own = os.fspath(path) if self.rank == 0 else f"{os.fspath(path)}.{self.rank}"
        self.core.start_timeline(own, mark_cycles)

    def stop_timeline(self) -> None:
        """End the trace; does nothing if there is none."""
        self.core.stop_timeline()

    def fix_plans(self, plans: Mapping[str, GradientPlan]) -> None:
        """Have these plans, which a checkpoint held, kept from now on, as those of a plan file are. Alike on all ranks,
        at one point of their programs. Raises `InvalidArgumentError` for one that a tensor of its name does not fit.
        """
        self._where_plans_are_from = (
            "The plan is from what casync.load_state() read: a codec that the program names comes before it"
        )
        self.core.fix_plans({name: asdict(plan) for name, plan in plans.items()})

    def abort(self, why: str) -> None:
        """End the session on all ranks: every outstanding and later operation raises `AbortedError` with `why`."""
        self._has_failed = True
        self.core.abort(why)

    def shutdown(self) -> None:
        """Leave the world. What all ranks have agreed on may still end, for a second; other outstanding operations end
        with an error, here and on the ranks that still wait for them. Idempotent.
        """
        if not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self.shutdown)
        self._unhook()
        if not isinstance(self.core, forks.Forked):
            self._report_unused_plans()
            self.core.shutdown()
            self.shortcuts.clear()
        self.pending.clear()
        self._interrupted.clear()

    def _report_unused_plans(self) -> None:
        """A plan file of another model would otherwise change nothing, without a word."""
        if not self._given_plans or self._has_failed or self.rank != 0:
            return
        used = self.plans()
        unused = [name for name, plan in self._given_plans.items() if used.get(name) != plan]
        if unused:
            _LOG.warning(
                "%d of the %d plans in %s were not used, the first of them that of %s: no such tensor was allreduced, "
                "or the script names another codec for it (compression='auto' leaves the choice to the file)",
                len(unused),
                len(self._given_plans),
                self.config.plan_file,
                unused[0],
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and value is not None:
            self._tell_others(kind, value, trace)
        self.shutdown()

    def _unhook(self) -> None:
        """Leave the chain of hooks, out of which sessions may go in any order."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous_hook
            return
        later = getattr(sys.excepthook, "__self__", None)
        while isinstance(later, Session):
            if later._previous_hook is self._hook:
                later._previous_hook = self._previous_hook
                return
            later = getattr(later._previous_hook, "__self__", None)

    def _on_uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """sys.excepthook: this program is about to end, so nobody should wait for it."""
        if self._is_open:
            self._tell_others(kind, value, trace)
        self._previous_hook(kind, value, trace)

    def _tell_others(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        # What ended the session is known on all ranks already, and must not look like this rank's fault.
        if isinstance(value, SESSION_IS_OVER):
            return
        self._has_failed = True
        text = _describe_exception(kind, value, trace)
        _report().failing(text)
        try:
            self.core.abort(f"rank {self.rank}: {text}")
        except CasyncError:
            _LOG.exception("could not tell the other ranks")


def _report() -> ModuleType:
    """How to tell casyncrun about this rank; without casyncrun its functions do nothing."""
    from casync.launcher import report

    return report

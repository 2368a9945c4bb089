"""A session: this process's membership in one world of ranks.

`Session` adds to the compiled core what belongs to a Python process: where the world comes from, memory that stays
alive while an operation is outstanding, and an end in good order however the program leaves.

    with Session(Config(compression="onebit")) as session:
        ...

Adaptors keep one default session (`casync.session.default`); several explicit ones may live in one process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from casync.config import horovod as horovod_variables
from casync.config.settings import Config
from casync.cuda import nccl_library
from casync.errors import SESSION_IS_OVER, CasyncError, InvalidArgumentError, PeerFailureError
from casync.observe.call_site import describe_exception, encodable
from casync.observe.logs import log, set_level, threshold
from casync.observe.metrics import OWN, CompressionMetrics, Metrics, RoundMetrics, metrics_of
from casync.observe.step_profile import StepProfiler, observer_of
from casync.plan.plans import GradientPlan, Plans
from casync.rendezvous import launcher_pipe as report
from casync.session import forks
from casync.session.call_numbers import CallNumbers
from casync.session.codec_states import CodecStates
from casync.session.completion_group import CompletionGroup
from casync.session.exit_hooks import ExitHooks
from casync.session.fixed_plans import FixedPlans
from casync.session.gpu_use import GpuUse
from casync.session.handles import Handles
from casync.session.registrations import Registrations
from casync.tensors.device import Device
from casync.transport import job as jobs
from casync.transport.world import World

if TYPE_CHECKING:
    from casync import _core

__all__ = ["Completion", "Session"]

Gathered: TypeAlias = "tuple[bytearray, list[int]]"
Completion: TypeAlias = "Callable[[CasyncError | None, Gathered | None], object]"
"""Called with what ended an operation, None if it is done, and with what `Session.synchronize_gather` returns of an
allgather or an alltoall.
"""

_LOG = logging.getLogger("casync")


class Session:
    """One rank's membership in one world.

    Args:
        config: settings; None reads the environment.
        tag: tells sessions of the same peers apart. The k-th session that a rank has with these peers must have the
            same tag on all of them.
        peers: ranks of the job that form this one, in order; None: all. This process must be among them.
        number: the upper 16 bits of its handles, so that those of several sessions of this process are told apart.
        environ: where the launcher's variables are looked up.
        job: the processes that were started together, if they have been joined already; None: they are joined.

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
        job: jobs.Job | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.config = Config.from_environment(environ) if config is None else config
        self.tag = tag
        set_level(self.config.log_level, self.config.explain)
        self._handles = Handles(self._failed)
        self.kept: Callable[[int], Any] = self._handles.kept.get
        """Returns what is kept for the operation with a handle; None once it was synchronised."""
        self._fixed_plans = FixedPlans(self.config.plan_file)
        self._has_failed = False
        self.job = jobs.join(environ, self.config) if job is None else job
        """The processes that were started together, of which this world may be a part."""
        transport, self.world = self._connect(tag, peers)
        self._fixed_plans.check_world(self.world.host_of, is_process_set=number > 0)
        if self.world.rank == 0 and number == 0:
            horovod_variables.tell(environ)
        # Imported here, so that settings, errors and the launcher work without the compiled module.
        from casync import _core

        options = self.config.core_options(self.world.rank, self.world.size)
        options |= {"session_tag": tag, "number": number, "host_of": list(self.world.host_of)}
        options |= {"fixed_plans": self._fixed_plans.as_options(), "nccl_library": nccl_library()}
        self.peers = list(range(self.world.size)) if peers is None else [int(rank) for rank in peers]
        """The number that the job has for each rank."""
        options |= {"world": self.peers, "log_level": threshold()}
        self._core_session = _core.Session(transport, options, log)
        self.shortcuts = _core.Shortcuts(self._core_session, self._handles.kept)
        """For a hot path: what names were last used with, as the user gives both."""
        self.rounds: dict[str, RoundMetrics] = {}
        """The numbers of local SGD and DiLoCo, which they keep here."""
        self.compression: dict[str, CompressionMetrics] = {}
        """What monitors have measured of gradients, which they keep here."""
        self.codec_states = CodecStates(self._core_session)
        """The state that codecs keep of tensors between steps."""
        self._gpu_use = GpuUse()
        self._registrations = Registrations(self._core_session, self._fixed_plans, self._gpu_use)
        self.register, self.knows = self._registrations.register, self._registrations.knows
        """`register(terms)` returns the number that `submit` takes."""
        self.call_numbers = CallNumbers()
        """For names on which ranks agree without a word."""
        self.tensor_name = self.call_numbers.tensor_name
        self._published_as: int | None = None
        self._is_open = True
        if self.config.timeline not in ("", "DYNAMIC"):
            self.start_timeline(self.config.timeline, self.config.timeline_mark_cycles)
        self._hooks = ExitHooks(self.shutdown, self._tell_others)
        forks.watch(self)
        report.initialized()
        is_first = self.world.rank == 0 and number == 0
        self._observer: StepProfiler | None = observer_of(environ, self.metrics, self.plans) if is_first else None

    def _connect(self, tag: int, peers: Sequence[int] | None) -> tuple[Any, World]:
        mine, hosts = self.job.rank, self.job.hosts
        ranks = list(range(len(hosts))) if peers is None else [int(rank) for rank in peers]
        if mine not in ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(len(hosts))):
            raise InvalidArgumentError(
                f"peers {ranks} must be distinct ranks of 0 to {len(hosts) - 1}, with this one, {mine}"
            )
        world = World.of(ranks.index(mine), [hosts[rank] for rank in ranks])
        return self.job.connect(tag, ranks, self.config), world

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

    @property
    def has_outstanding(self) -> bool:
        """Whether an operation was submitted, and neither synchronised yet nor called back."""
        return bool(self._handles.kept)

    @overload
    def submit(
        self, registration: int, source: int, target: int, keep: Any, *, rows: int = 0, wake: bool = True,
        splits: Sequence[int] = (), completion: None = None, device: Device | None = None,
    ) -> int: ...  # fmt: skip
    @overload
    def submit(
        self, registration: int, source: int, target: int, keep: Any, *, rows: int = 0, wake: bool = True,
        splits: Sequence[int] = (), completion: Completion | CompletionGroup, device: Device | None = None,
    ) -> None: ...  # fmt: skip
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
        completion: Completion | CompletionGroup | None = None,
        device: Device | None = None,
    ) -> int | None:
        """Submit memory at `source`, result to `target`; never blocks. `keep` is held until the handle is synchronised.

        `rows` are this rank's own, of an allgather; `splits` those for each rank, of an alltoall. `wake` false spares a
        switch of threads when the caller waits, or submits more, at once.

        With a `completion` there is no handle, and nothing to synchronise: it is called once, when the operation is
        done or has failed, `shutdown()` included, but not if this raises. One thread of the session's own calls all of
        them. It may submit the same tensor again; whatever waits is an `InvalidArgumentError` there. What it raises
        goes to `sys.unraisablehook`. Several operations may share one: see `together`.

        `device` says where the memory is if it is not the host's. What the current stream has been given by now comes
        before the operation; what the stream that is current in `synchronize` is given later comes after it. The
        result is on the device when a completion is called.
        """
        where: tuple[int, ...] = ()
        if device is not None:
            self._gpu_use.begin(self._core_session, device)
            where = (device.number, device.stream())
        if completion is None:
            handle: int = self._core_session.submit(registration, source, target, rows, wake, splits, None, *where)
            if device is not None:
                self._handles.devices[handle] = device
            self._handles.kept[handle] = keep
            return handle
        if isinstance(completion, CompletionGroup):
            self._core_session.submit(registration, source, target, rows, wake, splits, completion.core, *where)
            completion.keeps.append(keep)
            return None
        number = self._handles.keep(keep)

        def ended(error: CasyncError | None, gathered: Gathered | None) -> None:
            self._handles.end(number, error)
            completion(error, gathered)

        try:
            self._core_session.submit(registration, source, target, rows, wake, splits, ended, *where)
        except BaseException:
            self._handles.forget((number,))
            raise
        return None

    def together(self, completion: Callable[[CasyncError | None], object]) -> CompletionGroup:
        """One completion for the operations that are submitted with what this returns, of any kind with a result that
        goes to memory of the caller's.
        """
        return CompletionGroup(self._core_session, self._handles, completion)

    def c_session(self) -> Any:
        """For glue in C: the session as a capsule "casync.Session", which keeps it alive (casync/c_api.h)."""
        from casync import _core

        return _core.c_session(self._core_session)

    def publish(self, process_set: int) -> None:
        """Have glue in C find this session by the number of its process set until `shutdown()`."""
        from casync import _core

        _core.publish(self._core_session, process_set)
        self._published_as = process_set

    def keep(self, handle: int, what: Any) -> None:
        """Keep `what` for an outstanding operation, in place of what `submit` was given: a group of operations has the
        handle of the last one.
        """
        self._handles.kept[handle] = what

    def set_optimizer(
        self, registration: int, lr: float, momentum: float = 0.0, nesterov: bool = False, loss_scale: float = 1.0
    ) -> None:
        """Tell the codec of a tensor how its gradients are used from the next submit on: the learning rate, the
        momentum that the codec takes over, and the factor by which a GradScaler has multiplied them.
        """
        self._core_session.set_optimizer(registration, lr, momentum, nesterov, loss_scale)

    def poll(self, handle: int) -> bool:
        """Whether `synchronize(handle)` would return, or raise, at once."""
        return self._core_session.poll(handle)

    def synchronize(self, handle: int) -> Any:
        """Wait for an operation, forget it and return what was kept. Raises what went wrong, a
        `HorovodInternalError`.
        """
        devices = self._handles.devices
        device = devices.get(handle) if devices else None
        try:
            if device is None:
                self._core_session.synchronize(handle)
            else:
                self._core_session.synchronize(handle, device.stream())
                devices.pop(handle).ordered()
        except CasyncError as error:
            self._handles.fail((handle,), error)
            raise
        return self._handles.kept.pop(handle)

    def synchronize_all(self, handles: Sequence[int]) -> None:
        """Wait for all, forget them, then raise the first failure. After Ctrl-C all are still outstanding."""
        devices = [self._handles.devices[handle] for handle in handles if handle in self._handles.devices]
        try:
            if devices:
                self._core_session.synchronize_all(handles, devices[0].stream())
            else:
                self._core_session.synchronize_all(handles)
        except CasyncError as error:
            self._handles.fail(handles, error)
            raise
        self._handles.forget(handles)
        for device in devices:
            device.ordered()

    def synchronize_gather(self, handle: int) -> tuple[bytearray, list[int], Any]:
        """`synchronize` for an allgather or an alltoall: its bytes, the rows of them that each rank gave, and what was
        kept.
        """
        try:
            data, rows = self._core_session.synchronize_gather(handle)
        except CasyncError as error:
            self._handles.fail((handle,), error)
            raise
        self._handles.devices.pop(handle, None)
        return data, rows, self._handles.kept.pop(handle)

    def failed(self, error: CasyncError) -> None:
        """The program hears of what ended an operation that glue in C had submitted."""
        self._handles.fail((), error)

    def _failed(self, error: CasyncError) -> None:
        self._has_failed = True
        if self.size > 1 and isinstance(error, SESSION_IS_OVER):
            self.job.note_failure()
        if isinstance(error, PeerFailureError) and error.peer is not None:
            report.unreachable(error.peer, str(error))
        elif isinstance(error, SESSION_IS_OVER):
            report.gave_up(f"{type(error).__name__}: {error}")

    def counters(self) -> dict[str, int]:
        """Bytes and messages this rank sent and received since the session began, and memory it holds."""
        return self._core_session.counters()

    def metrics(self) -> Metrics:
        """A snapshot of what this rank has done since the session began: steps, bytes, times, queues. At once, also
        while another thread waits; after `shutdown()` the last one.
        """
        return metrics_of(self.rank, self.size, self._core_session.metrics(), self.rounds, self.compression)

    def plans(self) -> Plans:
        """The plans of all allreduced tensors that the ranks have agreed on so far, by name; alike on all ranks, but
        for `measured_s`, which is this rank's.

        `casync.plan.write_plans` puts them into a file, from which `CASYNC_PLAN_FILE` takes them in another run.
        """
        gradients = self.metrics().gradients
        plans = {
            name: GradientPlan(**plan, measured_s=gradients[name].plan_seconds if name in gradients else 0.0)
            for name, plan in self._core_session.plans().items()
            if not name.startswith(OWN)
        }
        return Plans(plans, self.world.host_of)

    def start_timeline(self, path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
        """Write what this rank does from now on as a Chrome trace, in place of an earlier one; Perfetto opens it.

        Rank 0 writes `path`, rank r another file with `.r` appended: `casync trace` puts them together. Raises
        `InvalidArgumentError` if it cannot be written.
        """
        own = os.fspath(path) if self.rank == 0 else f"{os.fspath(path)}.{self.rank}"
        self._core_session.start_timeline(own, mark_cycles)

    def stop_timeline(self) -> None:
        """End the trace; does nothing if there is none."""
        self._core_session.stop_timeline()

    def fix_plans(self, plans: Mapping[str, GradientPlan]) -> None:
        """Have these plans, which a checkpoint held, kept from now on, as those of a plan file are. Alike on all ranks,
        at one point of their programs. Raises `InvalidArgumentError` for one that a tensor of its name does not fit.
        """
        self._core_session.fix_plans(self._fixed_plans.from_checkpoint(plans))

    def close_in_child(self) -> None:
        """In a child process after a fork: have every later call refuse, since the session's threads and connections
        are the parent's. Only `casync.session.forks` calls it.
        """
        self._core_session.close_in_child()
        self._core_session = cast("_core.Session", forks.Forked(self._core_session))
        self._registrations.core_session = self._core_session
        self.shortcuts = cast("_core.Shortcuts", forks.Forked(self.shortcuts))
        self.codec_states = CodecStates(self._core_session)
        self.kept = lambda handle: self._core_session.poll(handle)  # refuses a handle that the parent has
        self._handles.clear()

    def abort(self, why: str) -> None:
        """End the session on all ranks: every outstanding and later operation raises `AbortedError` with `why`."""
        self._has_failed = True
        self._core_session.abort(encodable(why))

    def shutdown(self) -> None:
        """Leave the world. What all ranks have agreed on may still end, for a second; other outstanding operations end
        with an error, here and on the ranks that still wait for them. Returns after the last completion. Idempotent.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._hooks.remove()
        if not isinstance(self._core_session, forks.Forked):
            if self._observer is not None:
                self._observer.stop()
            if self._fixed_plans and self.rank == 0 and not self._has_failed:
                self._fixed_plans.report_unused(self.plans())
            self._core_session.shutdown()
            self._withdraw()
            self.shortcuts.clear()
        self._handles.clear()

    def _withdraw(self) -> None:
        if self._published_as is not None:
            from casync import _core

            _core.withdraw(self._published_as)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and value is not None:
            self._tell_others(kind, value, trace)
        self.shutdown()

    def _tell_others(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        # What ended the session is known on all ranks already, and must not look like this rank's fault.
        if isinstance(value, SESSION_IS_OVER):
            return
        self._has_failed = True
        text = describe_exception(kind, value, trace)
        report.failing(text)
        try:
            self._core_session.abort(f"rank {self.rank}: {text}")
        except CasyncError:
            _LOG.exception("could not tell the other ranks")

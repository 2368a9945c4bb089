"""All that can be set from outside: one frozen `Config`, read once at `init()`.

    config = Config.from_environment(os.environ, compression="onebit")

An argument wins over a `CASYNC_` variable, which wins over Horovod's name for it, which wins over the default.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from casync import _constants
from casync._constants import LOG_LEVELS
from casync.config.kinds import Choice, Compression, Count, Kind, Level, Path, Port, Seconds, Switch, Text, only_if_on
from casync.errors import InvalidArgumentError

__all__ = ["CONGESTION", "TRANSPORTS", "Config"]

_T = TypeVar("_T")

TRANSPORTS = ("auto", "mpi", "tcp")
"""By what ranks may reach each other."""

CONGESTION = ("auto", "system", "bbr", "cubic", "reno")
"""How TCP paces what it sends; "auto": as the round trip wants it."""

NEVER_SECONDS = 1e9
"""Longer than any operation may wait."""


Reads = Callable[[str], Any]
"""The value that a variable's text stands for; None: it says nothing."""


def _setting(default: _T, kind: Kind[_T], variable: str, **horovod: Reads) -> _T:
    """A field that `variable` sets, or else the first of Horovod's variables that says anything."""
    return field(default=default, metadata={"kind": kind, "variables": {variable: kind.read, **horovod}})


_SEED = Count(0, 2**32 - 1)
_THREADS = Count(1, 1024, "a system starts no more of them for sure, and more than there are cores gain nothing")
_UNCOMPRESSED: str | Mapping[str, Any] = "none"


@dataclass(frozen=True)
class Config:
    """How a session behaves. Each field names its variable, in brackets Horovod's, and its default.

    All ranks must be given the same values: a rank that compresses what another does not is a `MismatchError`.
    """

    compression: str | Mapping[str, Any] = _setting(_UNCOMPRESSED, Compression(), "CASYNC_COMPRESSION")
    """`CASYNC_COMPRESSION` (none): codec spec of gradients for which no `compression=` is given, or rules by name: a
    mapping here, the same in JSON in the variable, `{"*.bias": "none", "*": "onebit"}`."""

    topology: str = _setting("auto", Path(), "CASYNC_TOPOLOGY", HOROVOD_HIERARCHICAL_ALLREDUCE=only_if_on("two_level"))
    """`CASYNC_TOPOLOGY` [`HOROVOD_HIERARCHICAL_ALLREDUCE=1`: two_level] (auto): auto, direct, ps, ring, two_level, a
    list of phases (docs/plans.md), or the path of a JSON file with a graph (`casync.plan.topology`), where no
    `topology=` is given."""

    min_numel: int = _setting(_constants.MIN_NUMEL, Count(0), "CASYNC_MIN_NUMEL")
    """`CASYNC_MIN_NUMEL` (4096): gradients of fewer elements go uncompressed, unless a rule names them in full."""

    partition_bytes: int = _setting(_constants.PARTITION_BYTES, Count(1), "CASYNC_PARTITION_BYTES")
    """`CASYNC_PARTITION_BYTES` (256 KiB): the size of partition that the planner aims at."""

    pool_bytes: int = _setting(_constants.POOL_BYTES, Count(1), "CASYNC_POOL_BYTES")
    """`CASYNC_POOL_BYTES` (24 MiB): memory for payloads and partial sums, per rank."""

    worker_threads: int = _setting(_constants.WORKER_THREADS, _THREADS, "CASYNC_WORKER_THREADS")
    """`CASYNC_WORKER_THREADS` (1): threads that encode, merge and decode, per rank; at most 1024."""

    coordinator: str = _setting(_constants.COORDINATORS[0], Choice(_constants.COORDINATORS), "CASYNC_COORDINATOR")
    """`CASYNC_COORDINATOR` (local): the policy that decides which messages go over the links now: local or global."""

    coordinator_batch_bytes: int = _setting(
        _constants.COORDINATOR_BATCH_BYTES, Count(1), "CASYNC_COORDINATOR_BATCH_BYTES"
    )
    """`CASYNC_COORDINATOR_BATCH_BYTES` (1 MiB): bytes at which a batch of the global coordinator is full; a message of
    more goes alone."""

    coordinator_timeout_s: float = _setting(
        _constants.COORDINATOR_TIMEOUT_S, Seconds(), "CASYNC_COORDINATOR_TIMEOUT_SECONDS"
    )
    """`CASYNC_COORDINATOR_TIMEOUT_SECONDS` (0.0005): a batch that is not full is asked for after so long."""

    transport: str = _setting("auto", Choice(TRANSPORTS), "CASYNC_TRANSPORT")
    """`CASYNC_TRANSPORT` (auto): by what ranks reach each other: mpi, which casyncrun and mpirun start; tcp, CaSync's
    own sockets; or auto, which is mpi where MPI has started the process and tcp where torchrun, srun or plain RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT have. For a job on several hosts casyncrun makes auto tcp, unless MPI has
    something better than TCP there."""

    start_timeout_s: float = _setting(60.0, Seconds(), "CASYNC_START_TIMEOUT_SECONDS")
    """`CASYNC_START_TIMEOUT_SECONDS` (60): `init()` without MPI fails if not all processes have come after so long."""

    network_interface: str = _setting("", Text(), "CASYNC_NETWORK_INTERFACE", HOROVOD_GLOO_IFACE=str)
    """`CASYNC_NETWORK_INTERFACE` [`HOROVOD_GLOO_IFACE`] (the one that reaches MASTER_ADDR): without MPI, the interface
    or the network that ranks of other hosts reach this one by, eth0 or 10.0.0.0/16; several with commas between."""

    tcp_streams: int = _setting(0, Count(0), "CASYNC_TCP_STREAMS")
    """`CASYNC_TCP_STREAMS` (0: CaSync chooses): without MPI, connections for the bodies of each other rank."""

    tcp_congestion: str = _setting("auto", Choice(CONGESTION), "CASYNC_TCP_CONGESTION")
    """`CASYNC_TCP_CONGESTION` (auto): without MPI, the congestion control of connections between hosts: system leaves
    it as the system has it; bbr, cubic or reno; auto is bbr between distant hosts where the system allows it."""

    device_lane: str = _setting(_constants.DEVICE_LANES[0], Choice(_constants.DEVICE_LANES), "CASYNC_DEVICE_LANE")
    """`CASYNC_DEVICE_LANE` (auto): how GPUs send to each other: ipc, by CUDA's interprocess memory; nccl; host, through
    the memory of the host; or auto, the best way that all ranks have: ipc on one host, nccl between several."""

    explain: bool = _setting(False, Switch("explain", ""), "CASYNC_PLAN")
    """`CASYNC_PLAN=explain` (off): log the plan of each gradient with its reason and its predicted times, as
    `CASYNC_LOG_LEVEL=INFO` does."""

    plan_file: str = _setting("", Path(), "CASYNC_PLAN_FILE")
    """`CASYNC_PLAN_FILE` (none): plans of an earlier run, written by `casync.plan.write_plans`. The tensors in it have
    these plans and are not planned again, except where the script names another codec. Where it names another topology,
    the tensor's first use is an `InvalidArgumentError`.
    """

    re_plan: bool = _setting(False, Switch(), "CASYNC_REPLAN")
    """`CASYNC_REPLAN` (0): 1 has gradients planned anew, from one step on that all ranks agree on, when steps no longer
    take what was predicted. Codecs that the script names stay; their partitions and topologies may change."""

    seed: int = _setting(0, _SEED, "CASYNC_SEED")
    """`CASYNC_SEED` (0): the seed of the codecs' random numbers, from 0 to 4294967295; the same on all ranks."""

    deterministic: bool = _setting(False, Switch(), "CASYNC_DETERMINISTIC")
    """`CASYNC_DETERMINISTIC` (0): 1 makes plans that depend on nothing that is measured, and not on the order in
    which gradients come, so that two runs give the same bits. `auto` then decides by what links and codecs usually
    cost."""

    stall_warning_s: float = _setting(
        _constants.STALL_WARNING_S,
        Seconds(),
        "CASYNC_STALL_WARNING_SECONDS",
        HOROVOD_STALL_CHECK_DISABLE=only_if_on(NEVER_SECONDS),
        HOROVOD_STALL_CHECK_TIME_SECONDS=Seconds().read,
    )
    """`CASYNC_STALL_WARNING_SECONDS` [`HOROVOD_STALL_CHECK_TIME_SECONDS`, `HOROVOD_STALL_CHECK_DISABLE=1`: never] (60):
    report an operation that some rank has not submitted for so long, or that has begun and has not moved."""

    timeout_s: float = _setting(
        _constants.TIMEOUT_S,
        Seconds(),
        "CASYNC_TIMEOUT_SECONDS",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=Seconds(zero_is_unset=True).read,
    )
    """`CASYNC_TIMEOUT_SECONDS` [`HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`] (600): such an operation ends with a
    `StallError` after so long. Always finite."""

    peer_timeout_s: float = _setting(_constants.PEER_TIMEOUT_S, Seconds(), "CASYNC_PEER_TIMEOUT_SECONDS")
    """`CASYNC_PEER_TIMEOUT_SECONDS` (8): a rank that does not answer for so long, while another waits for it, is given
    up.
    """

    dynamic_process_sets: bool = _setting(
        False, Switch(), "CASYNC_DYNAMIC_PROCESS_SETS", HOROVOD_DYNAMIC_PROCESS_SETS=Switch().read
    )
    """`CASYNC_DYNAMIC_PROCESS_SETS` [`HOROVOD_DYNAMIC_PROCESS_SETS`] (0): 1 allows process sets to be added and removed
    after `init()`; `init(process_sets="dynamic")` sets it."""

    check_replicas: int = _setting(100, Count(0), "CASYNC_CHECK_REPLICAS")
    """`CASYNC_CHECK_REPLICAS` (100): in its first step and every so many after it an optimizer compares checksums of
    its parameters over the ranks, and logs which differ; 0 never."""

    watch_codecs: int = _setting(0, Count(0), "CASYNC_WATCH_CODECS")
    """`CASYNC_WATCH_CODECS` (0): every so many steps the optimizer and the DDP hook of `casync.torch` measure what
    codecs do to gradients, and log it; 0 never. The same as `monitor=CompressionMonitor(every=)`."""

    log_level: str = _setting("", Level(LOG_LEVELS), "CASYNC_LOG_LEVEL", HOROVOD_LOG_LEVEL=str)
    """`CASYNC_LOG_LEVEL` [`HOROVOD_LOG_LEVEL`] (that of the program): the least important messages of the logger
    `casync` that are shown: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL. Rank 0's plans are INFO."""

    event_log: str = _setting("", Path(), "CASYNC_EVENT_LOG")
    """`CASYNC_EVENT_LOG` (none): file for `casync replay`; `{rank}` in it becomes the rank, and is appended if it is
    missing.
    """

    timeline: str = _setting("", Path(), "CASYNC_TIMELINE", HOROVOD_TIMELINE=str)
    """`CASYNC_TIMELINE` [`HOROVOD_TIMELINE`] (none): file for a Chrome trace of what each rank does; rank 0 writes this
    file, rank r another one with `.r` appended. `DYNAMIC`: none until `start_timeline()`.
    """

    timeline_mark_cycles: bool = _setting(
        False, Switch(), "CASYNC_TIMELINE_MARK_CYCLES", HOROVOD_TIMELINE_MARK_CYCLES=Switch().read
    )
    """`CASYNC_TIMELINE_MARK_CYCLES` [`HOROVOD_TIMELINE_MARK_CYCLES`] (0): mark the turns of the progress thread in
    it."""

    metrics_port: int = _setting(0, Port(), "CASYNC_METRICS_PORT")
    """`CASYNC_METRICS_PORT` (none): `hvd.init()` has each rank serve its metrics to Prometheus on this port plus its
    local rank. A port that is taken is an `InvalidArgumentError`."""

    metrics_address: str = _setting("127.0.0.1", Text(), "CASYNC_METRICS_ADDRESS")
    """`CASYNC_METRICS_ADDRESS` (127.0.0.1): the address of this host at which they are served: whoever reaches it reads
    them. 0.0.0.0 is every interface."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **overrides: Any) -> Config:
        """The settings in `environ`, replaced by those `overrides` that are not None.

        Raises `InvalidArgumentError` that names the variable or the argument, its value and what is allowed, and
        TypeError for an argument that is no setting. Empty variables count as unset.
        """
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            for variable, read in reversed(item.metadata["variables"].items()):
                if text := environ.get(variable):
                    try:
                        value = read(text)
                        if value is not None:
                            values[item.name] = item.metadata["kind"].check(value)
                    except ValueError as error:
                        raise InvalidArgumentError(f"{variable}={text!r}: {error}") from None
        values.update({name: value for name, value in overrides.items() if value is not None})
        if unknown := sorted(values.keys() - {item.name for item in dataclasses.fields(cls)}):
            close = difflib.get_close_matches(unknown[0], [item.name for item in dataclasses.fields(cls)], 1)
            hint = f": did you mean {close[0]}?" if close else "; casync.config.Config has them all"
            raise TypeError(f"there is no setting {unknown[0]}{hint}")
        return cls(**values)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            given = getattr(self, item.name)
            try:
                object.__setattr__(self, item.name, item.metadata["kind"].check(given))
            except ValueError as error:
                raise InvalidArgumentError(f"{item.name}={given!r}: {error}") from None
        if self.deterministic and self.re_plan:
            raise InvalidArgumentError(
                "deterministic=True (CASYNC_DETERMINISTIC) and re_plan=True (CASYNC_REPLAN): new plans depend on "
                "the time that steps take, so that two runs would differ; leave one of them out"
            )

    def core_options(self, rank: int, size: int) -> dict[str, Any]:
        """The part that the compiled core reads (SessionOptions in session.hpp has the same names)."""
        ours = {
            "compression", "topology", "plan_file", "check_replicas", "watch_codecs", "dynamic_process_sets",
            "timeline", "timeline_mark_cycles", "log_level", "explain", "metrics_port", "metrics_address", "transport",
            "start_timeout_s", "network_interface", "tcp_streams", "tcp_congestion",
        }  # fmt: skip
        options = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name not in ours}
        if self.event_log:
            path = self.event_log
            if size > 1 and "{rank}" not in path:
                path += ".{rank}"
            options["event_log"] = path.replace("{rank}", str(rank))
        return options

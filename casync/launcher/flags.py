"""Every flag of casyncrun in one table: its names, and what it does.

horovodrun's flags are all here. `Own` is acted on by casyncrun, `Variable` becomes a variable of the ranks, `Nothing`
is accepted and answered with one line that says why it has no effect, `Refused` is an error that names what is missing.
The parser and its help, those lines, the keys of a --config-file and the table of the manual (tools/tables.py) are all
made from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from casync._constants import LOG_LEVELS
from casync.config import horovod as why
from casync.config.settings import NEVER_SECONDS

__all__ = ["FLAGS", "Effect", "Flag", "Nothing", "Own", "Refused", "Variable", "manual"]


@dataclass(frozen=True)
class Own:
    """casyncrun acts on it: `casync.launcher.options`."""


@dataclass(frozen=True)
class Variable:
    """Every rank gets this variable, with `text` of the given value; None: this value needs none."""

    name: str
    text: Callable[[Any], str | None] = str


@dataclass(frozen=True)
class Nothing:
    """Accepted without effect, and why."""

    why: str


@dataclass(frozen=True)
class Refused:
    """The effect of a flag that casyncrun does not have; says what to do instead."""

    instead: str


Effect = Own | Variable | Nothing | Refused


@dataclass(frozen=True)
class Flag:
    """One flag. `arguments` are argparse's; `setting` is its section and key in a --config-file."""

    names: tuple[str, ...]
    effect: Effect
    about: str
    arguments: Mapping[str, Any]
    group: str
    setting: str | None = None
    dest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dest", self.arguments.get("dest", self.spelling.strip("-").replace("-", "_")))

    @property
    def spelling(self) -> str:
        """The name that messages use: the first long one."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def shown(self) -> str:
        """How a manual writes it: `-np N, --num-proc N`."""
        metavar = self.arguments.get("metavar", "")
        words = " ".join(metavar) if isinstance(metavar, tuple) else metavar
        negated = self.arguments.get("action") is argparse.BooleanOptionalAction
        names = (f"--[no-]{name[2:]}" if negated else name for name in self.names)
        return ", ".join(f"{name} {words}".rstrip() for name in names)

    @property
    def help(self) -> str:
        """One line of what it does."""
        match self.effect:
            case Own():
                return self.about
            case Variable(name, _):
                return f"{self.about} ({name})"
            case Nothing(why):
                return f"no effect: {why}"
            case Refused(instead):
                return f"not available: {instead}"


_SWITCH: Mapping[str, Any] = {"action": "store_const", "const": True}
_EITHER: Mapping[str, Any] = {"action": argparse.BooleanOptionalAction}


def _takes(metavar: str, kind: Callable[[str], Any] = str, **more: Any) -> Mapping[str, Any]:
    return {"metavar": metavar, "type": kind, **more}


def _list(metavar: str, **more: Any) -> Mapping[str, Any]:
    return {"metavar": metavar, "action": "append", **more}


_WITHOUT_EFFECT: tuple[tuple[str, str, Mapping[str, Any], str, str | None], ...] = (
    ("--log-with-timestamp --no-log-hide-timestamp", why.TIMESTAMPS, _SWITCH, "output", "logging.with_timestamp"),
    ("--log-without-timestamp --log-hide-timestamp", why.TIMESTAMPS, _SWITCH, "output", "logging.hide_timestamp"),
    ("--disable-cache", "nothing about hosts is remembered: every start looks anew", _SWITCH, "hosts", None),
    ("--jsrun", "mpirun or srun start the ranks, whichever is found", _SWITCH, "mpi", "controller.jsrun"),
    ("--tcp", "between hosts there is only TCP", _SWITCH, "mpi", None),
    ("--mpi-threads-disable", why.THREADS, _EITHER, "mpi", "library_options.mpi_threads_disable"),
    ("--hierarchical-allgather", why.DIRECT_ALLGATHER, _EITHER, "tuning", "params.hierarchical_allgather"),
    ("--torus-allreduce", why.NO_TORUS, _EITHER, "tuning", "params.torus_allreduce"),
    ("--fusion-threshold-mb", why.NO_FUSION, _takes("MB", float), "tuning", "params.fusion_threshold_mb"),
    ("--cycle-time-ms", why.NO_CYCLE, _takes("MS", float), "tuning", "params.cycle_time_ms"),
    ("--cache-capacity", why.NO_CACHE, _takes("N", int), "tuning", "params.cache_capacity"),
    ("--autotune", why.NOTHING_TO_TUNE, _EITHER, "tuning", "autotune.enabled"),
    ("--autotune-log-file", why.NOTHING_TO_TUNE, _takes("FILE"), "tuning", "autotune.log_file"),
    ("--autotune-warmup-samples", why.NOTHING_TO_TUNE, _takes("N", int), "tuning", "autotune.warmup_samples"),
    ("--autotune-steps-per-sample", why.NOTHING_TO_TUNE, _takes("N", int), "tuning", "autotune.steps_per_sample"),
    (
        "--autotune-bayes-opt-max-samples",
        why.NOTHING_TO_TUNE,
        _takes("N", int),
        "tuning",
        "autotune.bayes_opt_max_samples",
    ),
    (
        "--autotune-gaussian-process-noise",
        why.NOTHING_TO_TUNE,
        _takes("X", float),
        "tuning",
        "autotune.gaussian_process_noise",
    ),
    ("--num-nccl-streams", why.NO_NCCL, _takes("N", int), "tuning", "library_options.num_nccl_streams"),
    ("--thread-affinity", why.AFFINITY, _takes("CORES"), "tuning", "library_options.thread_affinity"),
    ("--gloo-timeout-seconds", why.NO_GLOO, _takes("S", float), "tuning", "library_options.gloo_timeout_seconds"),
)
"""Flags that are accepted: their names, why they have no effect, argparse's arguments, group and setting."""
_ELASTIC: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    ("--min-np --min-num-proc", _takes("N", int), "elastic.min_num_proc"),
    ("--max-np --max-num-proc", _takes("N", int), "elastic.max_num_proc"),
    ("--slots-per-host", _takes("N", int), "elastic.slots_per_host"),
    ("--elastic-timeout", _takes("S", float), "elastic.elastic_timeout"),
    ("--reset-limit", _takes("N", int), "elastic.reset_limit"),
    ("--blacklist-cooldown-range", {"metavar": ("MIN", "MAX"), "type": float, "nargs": 2}, "elastic.cooldown_range"),
    ("--host-discovery-script", _takes("FILE"), "elastic.host_discovery_script"),
)
"""Flags of elastic jobs, which are refused: their names, argparse's arguments, and setting."""
_FIXED = Refused("jobs have a fixed number of ranks; save with casync.save_state and start again with another -np")

FLAGS: tuple[Flag, ...] = (
    # The job.
    Flag(("-np", "--num-proc"), Own(), "ranks to start (default: every slot of the hosts)", _takes("N", int), "job"),
    Flag(
        ("-H", "--hosts"),
        Own(),
        "hosts and how many ranks each takes (default: this one, or those of the Slurm allocation)",
        _takes("h1:2,h2:2"),
        "job",
    ),
    Flag(("-hostfile", "--hostfile"), Own(), "a file of lines `HOST slots=N`", _takes("FILE"), "job"),
    Flag(
        ("-x",),
        Own(),
        "give the ranks on other hosts this variable; may be repeated",
        _list("VAR[=VALUE]", dest="exports"),
        "job",
    ),
    Flag(
        ("--timeout-start", "--start-timeout"),
        Own(),
        "seconds within which every rank must have started (default: 60)",
        _takes("S", float, dest="start_timeout"),
        "job",
    ),
    Flag(
        ("--grace",),
        Own(),
        "seconds that the other ranks have to leave by themselves after one failed (default: 15)",
        _takes("S", float),
        "job",
    ),
    Flag(
        ("--config-file",),
        Own(),
        "settings in YAML, as horovodrun's; flags after it win over the file, flags before it lose",
        _takes("FILE"),
        "job",
    ),
    Flag(("--dry-run",), Own(), "print the line that would start the ranks, and start nothing", _SWITCH, "job"),
    Flag(("-cb", "--check-build"), Own(), "print what this installation was built with", _SWITCH, "job"),
    # Output.
    Flag(
        ("--output-filename",),
        Own(),
        "also write each rank's output to DIR/rank.R/stdout and DIR/rank.R/stderr",
        _takes("DIR"),
        "output",
    ),
    Flag(
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        Own(),
        "put the time before each line of a rank",
        _SWITCH,
        "output",
    ),
    Flag(
        ("--verbose",),
        Own(),
        "show the line that starts the ranks, ranks as they start and end, and all of mpirun's output",
        _SWITCH,
        "output",
    ),
    Flag(
        ("--log-level",),
        Variable("CASYNC_LOG_LEVEL"),
        "the least important messages of CaSync that are shown",
        _takes("LEVEL", str.upper, choices=LOG_LEVELS),
        "output",
        "logging.level",
    ),
    # Reaching other hosts.
    Flag(("-p", "--ssh-port"), Own(), "port of ssh on the other hosts", _takes("PORT", int), "hosts"),
    Flag(("-i", "--ssh-identity-file"), Own(), "private key for ssh", _takes("FILE"), "hosts"),
    Flag(("--rsh-agent",), Own(), "what starts a remote shell in place of ssh", _takes("PROGRAM"), "hosts"),
    Flag(
        ("--network-interface", "--network-interfaces", "--nics"),
        Own(),
        "interfaces or subnets that ranks and daemons may use, e.g. eth0 or 10.0.0.0/16; may be repeated",
        _list("NET", dest="networks"),
        "hosts",
    ),
    # MPI.
    Flag(
        ("--mpi-args",),
        Own(),
        "further arguments of mpirun, in one string; may be repeated",
        _list("ARGS"),
        "mpi",
        "library_options.mpi_args",
    ),
    Flag(
        ("--binding-args",),
        Own(),
        'mpirun\'s arguments for binding ranks to cores (default: "--bind-to none")',
        _list("ARGS"),
        "mpi",
        "library_options.binding_args",
    ),
    Flag(
        ("--mpi",),
        Variable("CASYNC_TRANSPORT", lambda is_wanted: "mpi" if is_wanted else None),
        "MPI carries everything, between hosts too",
        _SWITCH,
        "mpi",
        "controller.mpi",
    ),
    Flag(
        ("--gloo",),
        Variable("CASYNC_TRANSPORT", lambda is_wanted: "tcp" if is_wanted else None),
        "CaSync's own sockets carry everything, as gloo does in Horovod",
        _SWITCH,
        "mpi",
        "controller.gloo",
    ),
    # Timeline and stalls.
    Flag(
        ("--timeline-filename",),
        Variable("CASYNC_TIMELINE"),
        "write a timeline of all tensors to this file",
        _takes("FILE"),
        "diagnostics",
        "timeline.filename",
    ),
    Flag(
        ("--timeline-mark-cycles",),
        Variable("CASYNC_TIMELINE_MARK_CYCLES", lambda wanted: "1" if wanted else "0"),
        "mark the turns of the progress thread in it",
        _EITHER,
        "diagnostics",
        "timeline.mark_cycles",
    ),
    Flag(
        ("--stall-check-warning-time-seconds",),
        Variable("CASYNC_STALL_WARNING_SECONDS"),
        "report an operation that some rank has not submitted for so long (default: 60)",
        _takes("S", float),
        "diagnostics",
        "stall_check.warning_time_seconds",
    ),
    Flag(
        ("--stall-check-shutdown-time-seconds",),
        Variable("CASYNC_TIMEOUT_SECONDS", lambda seconds: str(seconds) if seconds else None),
        "end such an operation with an error after so long (default, and for 0: 600)",
        _takes("S", float),
        "diagnostics",
        "stall_check.shutdown_time_seconds",
    ),
    Flag(
        ("--stall-check",),
        Variable("CASYNC_STALL_WARNING_SECONDS", lambda wanted: None if wanted else str(NEVER_SECONDS)),
        "report operations that some rank has not submitted (default: on)",
        _EITHER,
        "diagnostics",
        "stall_check.enabled",
    ),
    # Tuning.
    Flag(
        ("--hierarchical-allreduce",),
        Variable("CASYNC_TOPOLOGY", lambda wanted: "two_level" if wanted else None),
        "always reduce inside each host first (default: where several hosts have several ranks each)",
        _EITHER,
        "tuning",
        "params.hierarchical_allreduce",
    ),
    *(
        Flag(tuple(names.split()), Nothing(reason), "", arguments, group, setting)
        for names, reason, arguments, group, setting in _WITHOUT_EFFECT
    ),
    *(Flag(tuple(names.split()), _FIXED, "", arguments, "elastic", setting) for names, arguments, setting in _ELASTIC),
)


def manual() -> str:
    """The table of the manual."""
    lines = ["| flag | what it does |", "|---|---|"]
    for flag in FLAGS:
        shown, text = (part.replace("|", "\\|") for part in (flag.shown, flag.help))
        lines.append(f"| `{shown}` | {text} |")
    return "\n".join(lines) + "\n"

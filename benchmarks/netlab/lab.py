"""The lab itself: makes the hosts, runs jobs on them, and leaves nothing behind.

A lab holds a lock file of its slot for as long as it lives. The kernel releases the lock when the process dies, however
it dies, so a slot whose lock is free but whose names exist is a crashed lab, and the next one sweeps it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.netlab.job import Counters, Job, RunResult
from benchmarks.netlab.layout import (
    SLOTS,
    Distance,
    HostLayout,
    Layout,
    agent_script,
    removal,
    setup,
    wan_command,
    wire,
)
from benchmarks.netlab.system import COMMAND_SECONDS, NetlabError, die_with_parent, environment, kill_inside, run, stop

__all__ = ["Netlab", "clean"]

_log = logging.getLogger(__name__)
_PORT = 29_950
_STREAM = Path(__file__).with_name("stream.py")
_WAN = Path(__file__).with_name("wan.cc")


class Netlab:
    """`hosts` machines named h1, h2, ... on one switch; each link carries `rate` in both directions at once. With a
    `distance` they are in different places. With `buffer_kib` the switch keeps that much for each host and loses what
    is more.
    """

    def __init__(
        self, hosts: int = 4, rate: str | None = "1gbit", distance: Distance | None = None, buffer_kib: int = 0
    ) -> None:
        self._count = hosts
        self._rate = rate
        self._distance = distance
        self._buffer_kib = buffer_kib
        self._wan: subprocess.Popen[str] | None = None
        self._layout: Layout | None = None
        self._lock: int | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Netlab:
        _require()
        clean()
        self._lock, slot = _take_slot()
        self._layout = Layout(slot, self._count, self._rate, self._distance, self._buffer_kib)
        try:
            for command in setup(self._layout):
                run(command)
            self._folder = Path(tempfile.mkdtemp(prefix=_folder_prefix(slot)))
            if self._distance is not None:
                self._wan = _start_wan(self._layout, self._folder)
                for command in wire(self._layout):
                    run(command)
            self.agent.write_text(agent_script(self._layout), encoding="utf-8")
            self.agent.chmod(0o700)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    # What there is -------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Names and addresses."""
        if self._layout is None:
            raise NetlabError("the lab exists inside `with Netlab(...) as lab:` only")
        return self._layout

    @property
    def folder(self) -> Path:
        """A folder that lives as long as the lab."""
        if self._folder is None:
            raise NetlabError("the lab exists inside `with Netlab(...) as lab:` only")
        return self._folder

    @property
    def agent(self) -> Path:
        """The program that mpirun uses in place of ssh."""
        return self.folder / "agent.sh"

    def counters(self) -> dict[str, Counters]:
        """What each host's NIC has carried since the lab was made."""
        found = {}
        for host in self.layout.hosts:
            text = run(("ip", "-n", host.namespace, "-s", "-j", "link", "show", "eth0"))
            stats = json.loads(text)[0]["stats64"]
            found[host.name] = Counters(stats["rx"]["bytes"], stats["tx"]["bytes"])
        return found

    def lost_packets(self) -> int:
        """Return how many packets the switch has lost since the lab was made, because its buffers were full."""
        links = {host.link for host in self.layout.hosts}
        queues = json.loads(run(("tc", "-s", "-j", "qdisc", "show")))
        return sum(int(queue["drops"]) for queue in queues if queue["dev"] in links)

    def link_down(self, host: str) -> None:
        """Pull the host's cable at the switch."""
        self._cable(host, "down")

    def link_up(self, host: str) -> None:
        """Put the cable back."""
        self._cable(host, "up")

    def _cable(self, host: str, state: str) -> None:
        if self._wan is None:
            run(("ip", "link", "set", self._host(host).link, state))
            return
        assert self._wan.stdin is not None
        self._wan.stdin.write(f"{state} {self._host(host).address}\n")
        self._wan.stdin.flush()

    def set_congestion(self, name: str) -> None:
        """The congestion control of connections that are made from now on, where nobody chooses another. With a
        distance it was cubic.
        """
        for host in self.layout.hosts:
            route = ("dev", "eth0", "src", host.address, "congctl", name)
            run(("ip", "-n", host.namespace, "route", "replace", self.layout.network, *route))

    def goodput(
        self,
        source: str = "h1",
        target: str = "h2",
        seconds: float = 2.0,
        *,
        skip: float | None = None,
        congestion: str = "",
    ) -> float:
        """Bits per second that one TCP stream carries from `source` to `target`, measured now, but for the first `skip`
        seconds. `congestion`: by this congestion control.
        """
        skip = min(0.5, seconds / 4) if skip is None else skip
        python = (sys.executable, "-I", "-S", str(_STREAM))
        receiver = subprocess.Popen(
            _inside(self._host(target), (*python, "receive", str(_PORT), str(skip))),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        try:
            assert receiver.stdout is not None
            if receiver.stdout.readline() != "ready\n":
                raise NetlabError(f"goodput: the receiver on {target} did not start")
            run(
                _inside(
                    self._host(source),
                    (*python, "send", self._host(target).address, str(_PORT), str(seconds), congestion),
                ),
                seconds + COMMAND_SECONDS,
            )
            text, _ = receiver.communicate(timeout=COMMAND_SECONDS)
            return float(text)
        finally:
            stop(receiver)

    # Jobs ----------------------------------------------------------------------------------------------------------

    def job_command(self, np: int, argv: Sequence[str], casyncrun_args: Sequence[str] = ()) -> list[str]:
        """The casyncrun command that runs `argv` as `np` ranks, spread evenly over the hosts."""
        hosts = self.layout.hosts
        slots = -(-np // len(hosts))
        # Not `python -m casync`: in a checkout that would find its folder, which is not what was installed.
        command = [str(Path(sys.executable).with_name("casyncrun")), "-np", str(np)]
        command += ["-H", ",".join(f"{host.name}:{slots}" for host in hosts)]
        command += ["--rsh-agent", str(self.agent), "--network-interface", self.layout.network]
        if np > len(os.sched_getaffinity(0)) and not any("mpi_yield_when_idle" in arg for arg in casyncrun_args):
            # Each host has its ranks' worth of slots, yet all share this machine's cores: casyncrun cannot see that.
            command += ["--mpi-args", "--mca mpi_yield_when_idle 1"]
        return [*command, *casyncrun_args, "--", *argv]

    def run(
        self,
        np: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        timeout: float = 600.0,
        casyncrun_args: Sequence[str] = (),
        capture: bool = True,
    ) -> RunResult:
        """Run a job through casyncrun and wait for it. Without `capture` its output goes where ours goes."""
        job = self.start(np, argv, env, casyncrun_args=casyncrun_args, capture=capture)
        return job.wait(timeout)

    def start(
        self,
        np: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        casyncrun_args: Sequence[str] = (),
        capture: bool = True,
    ) -> Job:
        """Start a job through casyncrun and return at once, for tests that meddle with a running one."""
        own = {**environment(env), "TMPDIR": str(self.folder)}
        return Job(self, [(self.job_command(np, argv, casyncrun_args), own)], capture)

    def run_torch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        timeout: float = 600.0,
        capture: bool = True,
    ) -> RunResult:
        """Run `argv` once per host the way torchrun would, for DDP over gloo; status is the first that is not 0."""
        hosts = self.layout.hosts
        commands = []
        for rank, host in enumerate(hosts):
            names = {
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(_PORT + 1),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "GLOO_SOCKET_IFNAME": "eth0",
                "TP_SOCKET_IFNAME": "eth0",
                "PYTHONUNBUFFERED": "1",
            }
            commands.append((_inside(host, argv), {**environment(env), **names}))
        return Job(self, commands, capture).wait(timeout)

    # Helpers -------------------------------------------------------------------------------------------------------

    def _host(self, name: str) -> HostLayout:
        for host in self.layout.hosts:
            if host.name == name:
                return host
        raise NetlabError(f"no host {name!r}; there are {', '.join(h.name for h in self.layout.hosts)}")

    def kill_all(self) -> None:
        """End every process that lives on one of the hosts."""
        for host in self.layout.hosts:
            kill_inside(host.namespace)

    def _remove(self) -> None:
        if self._layout is not None:
            _sweep(self._layout.slot)
        if self._wan is not None:
            stop(self._wan)
            self._wan = None
        if self._lock is not None:
            os.close(self._lock)
        self._layout = self._folder = self._lock = None


def clean() -> list[str]:
    """Remove what crashed labs left; labs that are alive are not touched. Returns the slots' bridge names."""
    _require()
    swept = []
    present = {name.split("-")[0].split("v")[0] for name in (*_namespaces(), *_links()) if name.startswith("csnl")}
    for slot in range(SLOTS):
        bridge = Layout(slot, 1, None).bridge
        if bridge not in present:
            continue
        lock = _try_lock(slot)
        if lock is not None:
            _log.warning("removing %s, left by a netlab that crashed", bridge)
            _sweep(slot)
            os.close(lock)
            swept.append(bridge)
    return swept


def _require() -> None:
    if os.geteuid() != 0:
        raise NetlabError("netlab makes network namespaces and needs root; run it with sudo")
    missing = [tool for tool in ("ip", "tc", "unshare", "hostname", "sysctl") if shutil.which(tool) is None]
    if missing:
        raise NetlabError(f"netlab needs {', '.join(missing)}: apt-get install iproute2 util-linux hostname procps")


def _try_lock(slot: int) -> int | None:
    descriptor = os.open(Path(tempfile.gettempdir()) / f"casync-netlab-{slot}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _take_slot() -> tuple[int, int]:
    for slot in range(SLOTS):
        lock = _try_lock(slot)
        if lock is not None:
            return lock, slot
    raise NetlabError(f"all {SLOTS} slots of this machine are taken by other labs")


def _namespaces() -> list[str]:
    return [line.split()[0] for line in run(("ip", "netns", "list")).splitlines() if line.strip()]


def _links() -> list[str]:
    return [entry["ifname"] for entry in json.loads(run(("ip", "-j", "link", "show")) or "[]")]


def _folder_prefix(slot: int) -> str:
    return f"casync-netlab-{slot}-"


def _sweep(slot: int) -> None:
    """Remove all that carries the slot's name. The caller holds the slot's lock."""
    prefix = f"{Layout(slot, 1, None).bridge}-h"
    namespaces = [name for name in _namespaces() if name.startswith(prefix)]
    for namespace in namespaces:
        kill_inside(namespace)
    for command in removal(slot, namespaces, _links()):
        try:
            run(command)
        except NetlabError as error:  # deleting a namespace also deletes its link, a moment later
            _log.debug("%s", error)
    for folder in Path(tempfile.gettempdir()).glob(f"{_folder_prefix(slot)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _start_wan(layout: Layout, folder: Path) -> subprocess.Popen[str]:
    program = folder / "wan"
    run(("c++", "-std=c++20", "-O2", "-o", str(program), str(_WAN)), 3 * COMMAND_SECONDS)
    wan = subprocess.Popen(
        wan_command(layout, str(program)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAN_GATEWAY": layout.bridge},
        preexec_fn=die_with_parent,
    )
    assert wan.stdout is not None
    if wan.stdout.readline() != "up\n":
        stop(wan)
        raise NetlabError("the emulator of a distance did not start: it needs /dev/net/tun")
    return wan


def _inside(host: HostLayout, argv: Sequence[str]) -> list[str]:
    """`argv` on a host, under the host's name."""
    script = 'hostname "$0"; exec "$@"'
    return ["ip", "netns", "exec", host.namespace, "unshare", "--uts", "sh", "-c", script, host.name, *argv]

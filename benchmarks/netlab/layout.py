"""The lab's names, addresses and commands as data. Pure, so tests read them without root.

A machine may hold several labs; each takes a slot, and everything it makes has the slot in its name:
bridge `csnl0`, namespace `csnl0-h1`, the link's end at the bridge `csnl0v1`, network 10.231.200.0/24.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SLOTS", "Distance", "HostLayout", "Layout", "agent_script", "removal", "setup", "wan_command", "wire"]

SLOTS = 32
_PREFIX = "csnl"
_FIRST_NETWORK = 200  # 10.231.200.0/24 and up
_MOST_HOSTS = 200

_MOST_DISTANT_MBIT = 300  # what the emulator in user space keeps up with
_BUFFER_MS = 100  # of a distant link: packets that would wait longer are lost

Command = tuple[str, ...]


@dataclass(frozen=True)
class Distance:
    """Between any two hosts: the round trip in ms, and the part of the packets that is lost on the way (0.001: one in a
    thousand).
    """

    rtt_ms: float
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rtt_ms <= 1000:
            raise ValueError(f"a round trip of {self.rtt_ms:g} ms: it is 0 to 1000")
        if not 0 <= self.loss < 1:
            raise ValueError(f"a loss of {self.loss:g}: it is a part of the packets, from 0 to less than 1")

    @classmethod
    def of(cls, rtt_ms: float | None, loss: float) -> Distance | None:
        """What the options --rtt and --loss say; None: hosts of one place."""
        if rtt_ms is None and loss:
            raise ValueError("--loss needs --rtt: packets are lost between distant hosts")
        return None if rtt_ms is None else cls(rtt_ms, loss)


@dataclass(frozen=True)
class HostLayout:
    """One host: its host name, namespace, link end at the bridge, and address."""

    name: str
    namespace: str
    link: str
    address: str


@dataclass(frozen=True)
class Layout:
    """A lab that takes slot `slot`. `rate` as tc writes it ("1gbit"), None for an unshaped link. With a `distance` the
    hosts are connected by an emulator (wan.cc) in place of a switch. `buffer_kib` is what the switch keeps for each
    host, beyond which it loses packets; 0: so much that it loses none.
    """

    slot: int
    count: int
    rate: str | None
    distance: Distance | None = None
    buffer_kib: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MOST_HOSTS:
            raise ValueError(f"{self.count} hosts: a lab has 1 to {_MOST_HOSTS}")
        if not 0 <= self.slot < SLOTS:
            raise ValueError(f"slot {self.slot}: a machine has {SLOTS}")
        if self.buffer_kib < 0 or (self.buffer_kib and (self.distance is not None or not self.rate_mbit)):
            raise ValueError("a buffer is that of a switch whose links have a rate")
        if self.distance is not None and not 0 < self.rate_mbit <= _MOST_DISTANT_MBIT:
            raise ValueError(f"rate {self.rate}: distant hosts have up to {_MOST_DISTANT_MBIT}mbit")

    @property
    def rate_mbit(self) -> float:
        """Of a link; 0 if it is not shaped, or not in kbit, mbit or gbit."""
        match = re.fullmatch(r"([0-9.]+)([kmg])bit", self.rate or "")
        return float(match[1]) * {"k": 1e-3, "m": 1.0, "g": 1e3}[match[2]] if match else 0.0

    @property
    def bridge(self) -> str:
        """The bridge all links end at."""
        return f"{_PREFIX}{self.slot}"

    @property
    def network(self) -> str:
        """The lab's subnet."""
        return f"10.231.{_FIRST_NETWORK + self.slot}.0/24"

    @property
    def gateway(self) -> str:
        """The address of this machine on the bridge, where mpirun's daemons report to."""
        return self._address(1)

    @property
    def hosts(self) -> tuple[HostLayout, ...]:
        """h1, h2, ..."""
        return tuple(
            HostLayout(f"h{i}", f"{self.bridge}-h{i}", f"{self.bridge}v{i}", self._address(10 + i))
            for i in range(1, self.count + 1)
        )

    def _address(self, last: int) -> str:
        return f"10.231.{_FIRST_NETWORK + self.slot}.{last}"


def setup(layout: Layout) -> list[Command]:
    """The commands that make the lab, in order; with a distance, those before the emulator is started."""
    if layout.distance is not None:
        return [command for host in layout.hosts for command in _namespace(host)]
    commands: list[Command] = [
        ("ip", "link", "add", layout.bridge, "type", "bridge"),
        ("ip", "addr", "add", f"{layout.gateway}/24", "dev", layout.bridge),
        ("ip", "link", "set", layout.bridge, "up"),
    ]
    for host in layout.hosts:
        commands += [
            *_namespace(host),
            ("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace),
            ("ip", "link", "set", host.link, "master", layout.bridge, "up"),
            *_address(layout, host),
        ]
        if layout.rate is not None:
            # A full-duplex link: tbf shapes what leaves a device, so the uplink is shaped at the host's end and the
            # downlink at the bridge's.
            shape = ("root", "tbf", "rate", layout.rate)
            deep = (*shape, "burst", "256kb", "latency", "20ms")
            up = (*shape, "burst", "16kb", "latency", "20ms") if layout.buffer_kib else deep
            down = (*shape, "burst", "16kb", "limit", f"{layout.buffer_kib}kb") if layout.buffer_kib else deep
            if layout.buffer_kib:
                # Packets as they are on a wire: one of 64 KiB would be a whole buffer.
                wire_size = ("gso_max_size", "1514", "gso_max_segs", "1")
                commands.append(("ip", "-n", host.namespace, "link", "set", "eth0", *wire_size))
            commands.append(("tc", "-n", host.namespace, "qdisc", "add", "dev", "eth0", *up))
            commands.append(("tc", "qdisc", "add", "dev", host.link, *down))
    return commands


def _namespace(host: HostLayout) -> list[Command]:
    return [
        ("ip", "netns", "add", host.namespace),
        # Neighbour discovery would put bytes on the NICs' counters that no job sent.
        ("ip", "netns", "exec", host.namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"),
        ("ip", "-n", host.namespace, "link", "set", "lo", "up"),
    ]


def _address(layout: Layout, host: HostLayout) -> list[Command]:
    inside = ("ip", "-n", host.namespace)
    return [
        (*inside, "addr", "add", f"{host.address}/24", "dev", "eth0"),
        (*inside, "link", "set", "eth0", "up"),
        # Linux's default congestion control, whatever this machine is set to: under bbr every flow slows down for
        # 200 ms now and then, and in a ring all ranks wait for the one that does.
        (*inside, "route", "replace", layout.network, "dev", "eth0", "src", host.address, "congctl", "cubic"),
    ]


def wan_command(layout: Layout, program: str) -> Command:
    """What runs the emulator for a lab with a distance."""
    assert layout.distance is not None
    numbers = (layout.rate_mbit, layout.distance.rtt_ms, layout.distance.loss, _BUFFER_MS)
    ends = [f"{host.namespace}={host.address}" for host in layout.hosts] + [f"-={layout.gateway}"]
    return (program, *(f"{number:g}" for number in numbers), *ends)


def wire(layout: Layout) -> list[Command]:
    """With a distance, the commands after the emulator has made the devices."""
    commands: list[Command] = [
        ("ip", "addr", "add", f"{layout.gateway}/24", "dev", layout.bridge),
        ("ip", "link", "set", layout.bridge, "up"),
    ]
    for host in layout.hosts:
        inside = ("ip", "netns", "exec", host.namespace, "sysctl", "-qw")
        commands += [
            *_address(layout, host),
            # As hosts with distant peers are set up: a window of a stream that fills the link at any round trip here.
            (*inside, "net.ipv4.tcp_wmem=4096 65536 67108864"),
            (*inside, "net.ipv4.tcp_rmem=4096 131072 67108864"),
        ]
    return commands


def removal(slot: int, namespaces: list[str], links: list[str]) -> list[Command]:
    """The commands that remove what is left of slot `slot`, given the names that exist now."""
    layout = Layout(slot, 1, None)
    commands: list[Command] = [("ip", "netns", "del", n) for n in namespaces if n.startswith(f"{layout.bridge}-h")]
    commands += [("ip", "link", "del", link) for link in links if link.startswith(f"{layout.bridge}v")]
    commands += [("ip", "link", "del", link) for link in links if link == layout.bridge]
    return commands


def agent_script(layout: Layout) -> str:
    """What mpirun runs in place of ssh: `agent [options] HOST COMMAND...`.

    Each host needs a host name of its own (a UTS namespace): two daemons that call themselves alike crash rank 1.
    Temporary files go where the script lies, so the session folder of a daemon that was killed goes with the lab.
    """
    cases = "\n".join(f"  {host.name}|{host.address}) namespace={host.namespace};;" for host in layout.hosts)
    return f"""#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in -o|-p|-l|-i) shift 2;; -*) shift;; *) break;; esac; done
host=$1; shift
case "$host" in
{cases}
  *) echo "netlab: no host $host" >&2; exit 255;;
esac
TMPDIR=${{0%/*}}; export TMPDIR
exec ip netns exec "$namespace" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""

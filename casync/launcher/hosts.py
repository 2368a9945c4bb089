"""Hosts and places: what `-H` and `--hostfile` mean, and which rank is where.

Pure values. Ranks fill the hosts in the order given, as many per host as it has slots (`--map-by slot`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from casync.rendezvous.slurm_hosts import HostError

__all__ = ["Host", "Place", "parse_hostfile", "parse_hosts", "places"]

_NAME = r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]{1,255})"
"""The pattern of a host's name. An address with colons stands in brackets, or its end would be taken for slots."""
_MOST_DIGITS = 6


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Place:
    """Where one rank is, in Horovod's terms: `cross` counts the hosts that have a rank of the same local rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str


def parse_hosts(text: str) -> tuple[Host, ...]:
    """`h1:2,h2:4`; a host without a number has one slot."""
    hosts = []
    for item in text.split(","):
        match = re.fullmatch(rf"\s*{_NAME}(?::(\d+))?\s*", item)
        if match is None:
            raise HostError(f"host list {text!r}: {item.strip()!r} is not HOST or HOST:SLOTS{_hint(item)}")
        hosts.append(Host(match[1], _slots(match[2], f"host list {text!r}")))
    return _checked(hosts, "host list")


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """Lines `host slots=N`, comments after `#`; a host without a number has one slot."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        match = re.fullmatch(rf"{_NAME}(?::(\d+)|\s+slots\s*=\s*(\d+))?", content)
        if match is None:
            raise HostError(f"hostfile line {number}: {content!r} is not `HOST slots=N`{_hint(content.split()[0])}")
        hosts.append(Host(match[1], _slots(match[2] or match[3], f"hostfile line {number}")))
    return _checked(hosts, "hostfile")


def _hint(word: str) -> str:
    word = word.strip()
    return f": an IPv6 address stands in brackets, [{word}]:N or [{word}]" if word.count(":") > 1 else ""


def _slots(digits: str | None, where: str) -> int:
    if digits is not None and len(digits) > _MOST_DIGITS:
        raise HostError(f"{where}: {digits} slots are more than a host has")
    return int(digits or 1)


def _checked(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    if not hosts:
        raise HostError(f"{where}: no host named")
    seen: set[str] = set()
    for host in hosts:
        if host.slots < 1:
            raise HostError(f"{where}: host {host.name} has no slots")
        if host.name in seen:
            raise HostError(f"{where}: host {host.name} is named twice")
        seen.add(host.name)
    return tuple(hosts)


def places(ranks: Mapping[int, tuple[str, int | None]]) -> dict[int, Place]:
    """Return each rank's place, from its (host name, local rank). Hosts count in the order of their lowest rank.

    Where the local rank is not known (None), it is the position among the ranks of the host.
    """
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_host.setdefault(ranks[rank][0], []).append(rank)

    def local_rank_of(rank: int) -> int:
        host, known = ranks[rank]
        return by_host[host].index(rank) if known is None else known

    result = {}
    for rank, (hostname, _) in ranks.items():
        local_rank = local_rank_of(rank)
        peers = [h for h, members in by_host.items() if any(local_rank_of(m) == local_rank for m in members)]
        result[rank] = Place(
            rank, len(ranks), local_rank, len(by_host[hostname]), peers.index(hostname), len(peers), hostname
        )
    return result

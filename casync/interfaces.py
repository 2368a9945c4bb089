"""The network interfaces of this host."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

__all__ = ["addresses", "is_within", "reaching"]

_SIOCGIFADDR = 0x8915
_NOBODY = "192.0.2.1"  # RFC 5737: for documentation


def addresses() -> dict[str, str]:
    """The IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            try:
                found[interface] = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
            except OSError:
                continue
    return found


def is_within(address: str, network: str) -> bool:
    """Whether `address` is in `network`, written as 10.0.0.0/16; False if that is no network."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def reaching(address: str) -> str:
    """This host's own address on the way to `address`, a name or a number; "": any other host. Nothing is sent.

    Raises OSError if there is no way.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address or _NOBODY, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])

"""The network interfaces of this host, and sockets that listen there: IPv4, IPv6 or both."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

__all__ = ["LOOPBACK", "addresses", "is_loopback", "is_within", "listen_at", "loopback", "named", "reaching"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names by which only this host can mean itself."""

_SIOCGIFADDR = 0x8915
_IPV6 = Path("/proc/net/if_inet6")
_GLOBAL, _HOST = "00", "10"  # scopes: of a link alone an address means nothing without its interface
_NOT_FOR_US = 0x68  # tentative, deprecated, or given up because another host has it (linux/if_addr.h)
_TEMPORARY = 0x01
_NOBODY = ("192.0.2.1", "2001:db8::1")  # RFC 5737 and 3849: for documentation
_BACKLOG = 1024


def addresses() -> dict[str, tuple[str, ...]]:
    """The addresses of each interface that has one, IPv4 first, but none that is good on one link alone."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            with contextlib.suppress(OSError):
                text = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
                found.setdefault(interface, []).append(text)
    try:
        listed = _IPV6.read_text(encoding="ascii")
    except OSError:
        listed = ""  # a kernel without IPv6
    for interface, text in _of_ipv6(listed):
        found.setdefault(interface, []).append(text)
    return {interface: tuple(texts) for interface, texts in found.items()}


def _of_ipv6(listed: str) -> list[tuple[str, str]]:
    """Interface and address of each usable line of /proc/net/if_inet6, those that last before those that do not."""
    found = []
    for line in listed.splitlines():
        number, _, _, scope, flags, interface = line.split()
        if scope in (_GLOBAL, _HOST) and not int(flags, 16) & _NOT_FOR_US:
            text = str(ipaddress.IPv6Address(bytes.fromhex(number)))
            found.append((int(flags, 16) & _TEMPORARY, interface, text))
    return [(interface, text) for _, interface, text in sorted(found, key=lambda one: one[0])]


def is_loopback(address: str) -> bool:
    """Whether only this host can reach it there."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def loopback() -> str:
    """The address by which processes of this host reach each other."""
    known = {text for texts in addresses().values() for text in texts}
    return "::1" if "127.0.0.1" not in known and "::1" in known else "127.0.0.1"


def is_within(address: str, network: str) -> bool:
    """Whether `address` is in `network`, written as 10.0.0.0/16; False if that is no network."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def named(network: str, known: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The addresses of an interface, or those within a network, whichever `network` names."""
    return [text for name, texts in known.items() for text in texts if name == network or is_within(text, network)]


def reaching(address: str) -> str:
    """This host's own address on the way to `address`, a name or a number; "": any other host. Nothing is sent.

    Raises OSError if there is no way, and UnicodeError for what can be no name.
    """
    failure = OSError("no way")
    for each in [address] if address else _NOBODY:
        for family, kind, protocol, _, place in socket.getaddrinfo(each, 9, type=socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(place)
                    return str(probe.getsockname()[0])
            except OSError as error:
                failure = error
    raise failure


def listen_at(address: str, port: int = 0, backlog: int = _BACKLOG) -> list[socket.socket]:
    """Sockets that listen at `address`, "": at all addresses of this host, IPv4 and IPv6 at one port. Raises OSError.

    "localhost" may have an address of each.
    """
    if address:
        return _listen_at_each(address, port, backlog)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            family = socket.AF_INET6
            return [socket.create_server(("", port), family=family, backlog=backlog, dualstack_ipv6=True)]
    return [socket.create_server(("", port), backlog=backlog)]  # no IPv6 here, or the error is what IPv4 says


def _listen_at_each(address: str, port: int, backlog: int) -> list[socket.socket]:
    doors: list[socket.socket] = []
    failure = OSError(f"{address} is no address of this host")
    for family, _, _, _, place in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM):
        try:
            doors.append(socket.create_server(place[:2], family=family, backlog=backlog))
        except OSError as error:
            failure = error
    if not doors or failure.errno == errno.EADDRINUSE:
        for door in doors:
            door.close()
        raise failure
    return doors

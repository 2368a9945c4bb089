"""The addresses of this host, of both kinds."""

from __future__ import annotations

import socket

import pytest

from casync.rendezvous import interfaces

LISTED = """\
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000021b21fffe000001 02 40 20 80     eth0
fd000000000000000000000000000012 02 40 00 80     eth0
20010db8000000000000000000000001 02 40 00 01     eth0
20010db8000000000000000000000002 02 40 00 00     eth0
20010db8000000000000000000000003 02 40 00 40     eth0
20010db8000000000000000000000004 03 40 00 20     eth1
"""


def test_addresses_that_others_can_use_and_those_that_last_first() -> None:
    assert interfaces._of_ipv6(LISTED) == [
        ("lo", "::1"), ("eth0", "fd00::12"), ("eth0", "2001:db8::2"), ("eth0", "2001:db8::1")
    ]  # fmt: skip


def test_an_interface_and_a_network_are_named_alike() -> None:
    known = {"eth0": ("10.0.0.2", "fd00::2"), "eth1": ("fd01::2",)}
    assert interfaces.named("eth0", known) == ["10.0.0.2", "fd00::2"]
    assert interfaces.named("fd01::/16", known) == ["fd01::2"]
    assert interfaces.named("10.0.0.0/8", known) == ["10.0.0.2"]
    assert interfaces.named("eth2", known) == []


def test_this_host_has_loopback() -> None:
    assert "127.0.0.1" in {text for texts in interfaces.addresses().values() for text in texts}
    assert (
        interfaces.is_loopback("127.0.1.1") and interfaces.is_loopback("::1") and not interfaces.is_loopback("10.0.0.1")
    )
    assert interfaces.reaching("127.0.0.1") == "127.0.0.1"


def test_all_addresses_are_those_of_both_kinds() -> None:
    (door,) = interfaces.listen_at("")
    with door:
        port = door.getsockname()[1]
        for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            with socket.create_connection((address, port), timeout=5):
                pass
        with pytest.raises(OSError):
            interfaces.listen_at("127.0.0.1", port)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError):
        interfaces.listen_at("192.0.2.1")

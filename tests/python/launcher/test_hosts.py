"""Where each rank is, in Horovod's terms."""

from __future__ import annotations

import pytest

from casync.launcher.hosts import Host, Place, parse_hostfile, parse_hosts, places
from casync.rendezvous.slurm_hosts import HostError


def test_places_on_equal_hosts() -> None:
    found = places({0: ("a", 0), 1: ("a", 1), 2: ("b", 0), 3: ("b", 1)})
    assert found[2] == Place(2, 4, 0, 2, 1, 2, "b")
    assert found[1] == Place(1, 4, 1, 2, 0, 2, "a")


def test_places_on_unequal_hosts_count_only_hosts_that_have_the_local_rank() -> None:
    found = places({0: ("a", 0), 1: ("b", 0), 2: ("b", 1), 3: ("c", 0), 4: ("c", 1)})
    assert (found[0].cross_rank, found[0].cross_size, found[0].local_size) == (0, 3, 1)
    assert (found[2].cross_rank, found[2].cross_size, found[2].local_size) == (0, 2, 2)
    assert (found[4].cross_rank, found[4].cross_size) == (1, 2)


def test_places_do_not_depend_on_the_order_in_which_ranks_were_heard_of() -> None:
    assert places({1: ("b", 0), 0: ("a", 0)}) == places({0: ("a", 0), 1: ("b", 0)})


def test_a_bracketed_address_is_one_name() -> None:
    assert parse_hosts("[fe80::1]:2") == (Host("[fe80::1]", 2),)


@pytest.mark.parametrize("text", ["fd00::12", "fd00::12 slots=2", "::1", "a:b:2", "fe80::1%eth0"])
def test_an_address_with_colons_stands_in_brackets_in_a_hostfile_too(text: str) -> None:
    with pytest.raises(HostError, match=r"hostfile line 1: .* an IPv6 address stands in brackets, \["):
        parse_hostfile(text)
    assert parse_hostfile("[fd00::12] slots=3\n[fd00::13]:2") == (Host("[fd00::12]", 3), Host("[fd00::13]", 2))


def test_a_name_may_be_long_and_slots_may_not() -> None:
    name = ".".join(["h" * 63] * 4)
    assert parse_hosts(f"{name}:2") == parse_hostfile(f"{name} slots=2") == (Host(name, 2),)
    for digits in ("9" * 7, "9" * 5000):
        with pytest.raises(HostError, match="slots are more than a host has"):
            parse_hostfile(f"h slots={digits}")


def test_unknown_local_ranks_count_within_their_host() -> None:
    found = places({0: ("a", None), 1: ("b", None), 2: ("a", None)})
    assert [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for _, p in sorted(found.items())] == [
        (0, 2, 0, 2), (0, 1, 1, 2), (1, 2, 0, 1)
    ]  # fmt: skip

"""Who waits in init() for whom. The clock is a literal."""

from __future__ import annotations

from casync.launcher.arrivals import Arrivals, Overdue


def waiting(*ranks: int, size: int = 4, warning_s: float = 60.0, timeout_s: float = 600.0) -> Arrivals:
    """`ranks` have come, one second after the other."""
    arrivals = Arrivals()
    for second, rank in enumerate(ranks):
        arrivals.entered(rank, "MPI", range(size), warning_s, timeout_s, float(second))
    return arrivals


def test_a_wait_is_said_once_and_then_ends() -> None:
    arrivals = waiting(0, 2)
    assert arrivals.next_deadline() == 60.0
    assert arrivals.overdue(59.9) == []
    assert arrivals.overdue(60.0) == [Overdue((1, 3), (0, 2), 60.0, 600.0)]
    assert arrivals.next_deadline() == 600.0
    assert arrivals.overdue(599.9) == []
    (last,) = arrivals.overdue(600.0)
    assert last.final and last.missing == (1, 3)


def test_a_limit_below_the_warning_comes_alone() -> None:
    arrivals = waiting(0, timeout_s=5.0)
    assert arrivals.next_deadline() == 5.0
    (last,) = arrivals.overdue(5.0)
    assert last.final


def test_when_all_have_come_nothing_is_due() -> None:
    arrivals = waiting(0, 1, 2, 3)
    assert arrivals.next_deadline() is None
    assert arrivals.overdue(1000.0) == []
    assert arrivals.in_vain([1]) is None


def test_who_is_through_speaks_for_all() -> None:
    arrivals = waiting(0, 1)
    arrivals.met("MPI")  # the words of 2 and 3 are on their way
    assert arrivals.next_deadline() is None
    arrivals.entered(3, "MPI", range(4), 60.0, 600.0, 2.0)
    assert arrivals.overdue(1000.0) == []


def test_a_wait_among_some_concerns_no_other() -> None:
    arrivals = Arrivals()
    arrivals.entered(2, "0 of 2, 3", [2, 3], 60.0, 600.0, 5.0)
    assert arrivals.overdue(65.0)[0].missing == (3,)
    assert arrivals.in_vain([0, 1]) is None
    assert arrivals.in_vain([3]) == (3, [2])

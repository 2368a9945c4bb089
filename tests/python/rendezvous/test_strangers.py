"""Connections that have proved nothing: how many, for how long, and who goes first."""

from __future__ import annotations

from casync.rendezvous.strangers import SECONDS, Strangers


def test_the_oldest_makes_room_for_a_new_one() -> None:
    strangers: Strangers[str] = Strangers(ranks=2)
    assert [strangers.enter(each, 0.0) for each in "abcd"] == [None] * 4
    assert strangers.enter("e", 1.0) == "a"
    strangers.leave("b")
    assert strangers.enter("f", 2.0) is None
    assert strangers.enter("g", 2.0) == "c"
    assert strangers.everyone() == ["d", "e", "f", "g"]


def test_who_seems_to_know_the_secret_goes_last() -> None:
    strangers: Strangers[str] = Strangers(ranks=1)
    strangers.enter("rank", 0.0)
    strangers.believe("rank")
    assert [strangers.enter(each, 1.0) for each in "abc"] == [None, "a", "b"]
    strangers.believe("c")
    assert strangers.enter("d", 2.0) == "rank"  # all have begun well: there is a limit even so


def test_the_time_of_each_is_limited() -> None:
    strangers: Strangers[str] = Strangers(ranks=2)
    assert strangers.next_deadline() is None
    strangers.enter("a", 1.0)
    strangers.enter("b", 3.0)
    assert strangers.next_deadline() == 1.0 + SECONDS
    assert strangers.overdue(0.9 + SECONDS) == []
    assert strangers.overdue(1.0 + SECONDS) == ["a"]
    strangers.leave("a")
    assert "a" not in strangers and "b" in strangers
    assert strangers.next_deadline() == 3.0 + SECONDS

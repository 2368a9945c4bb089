"""Calls without names are known by who sends them, or by their place in a turn."""

from __future__ import annotations

from casync.collectives.call_order import PLACES, CallOrder, Place


def names(places: CallOrder, calls: str, turn: int) -> list[str]:
    return [places.of_turn(call, turn).name for call in calls]


def test_senders_are_known_whatever_the_turn() -> None:
    places = CallOrder()
    assert [places.of_object("a", sender) for sender in "xy"] == [Place("sender0", True), Place("sender1", True)]
    assert [places.of_object("a", sender) for sender in "yxy"] == [
        Place(name, False) for name in ("sender1", "sender0", "sender1")
    ]
    assert places.of_object("b", "y") == Place("sender0", True), "another kind of call counts for itself"


def test_a_turn_has_the_same_places_again() -> None:
    places = CallOrder()
    for turn in range(3):
        assert names(places, "aba", turn) == ["place0", "place0", "place1"]
    assert names(places, "b", 3) == ["place0"], "a turn may have fewer calls"
    assert names(places, "aab", 4) == ["place0", "place1", "place0"]


def test_without_turns_places_come_again() -> None:
    places = CallOrder()
    assert names(places, "a" * (PLACES + 1), 0)[-1] == "place0"

"""Calls without names are known by their place in a step."""

from __future__ import annotations

from casync.collectives.places import Change, Places, shown


def step(places: Places, calls: str) -> list[int | None]:
    return [places.place(call) for call in calls]


def test_places_by_the_ends_that_are_told() -> None:
    places = Places()
    assert step(places, "aba") == [None] * 3
    assert places.end() is None
    for _ in range(3):
        assert step(places, "aba") == [0, 0, 1]
        assert places.end() is None
    assert places.end() is None, "another optimizer's step, without calls"
    assert places.generation == 0


def test_buckets_that_are_laid_out_anew_after_the_first_step() -> None:
    places = Places()
    step(places, "abc")
    places.end()
    assert step(places, "xy") == [0, 0]
    assert places.end() == Change(True, tuple("abc"), tuple("xy"))
    assert places.generation == 0, "nothing was kept of the first step"
    assert step(places, "xy") == [0, 0]
    assert places.end() is None


def test_a_later_change_begins_anew() -> None:
    places = Places()
    for _ in range(3):
        step(places, "ab")
        places.end()
    step(places, "a")
    assert places.end() == Change(False, tuple("ab"), tuple("a"))
    assert places.generation == 1
    step(places, "a")
    assert places.end() is None


def test_without_ends_a_step_is_what_comes_again() -> None:
    places = Places()
    assert step(places, "abcabc") == [None] * 6
    assert step(places, "abcabc") == [0] * 6


def test_calls_are_shown_in_short() -> None:
    assert shown("abc") == "a, b, c" and shown("a" * 10) == "a, a, a, a, a, a, a, a, and 2 more"

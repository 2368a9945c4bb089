"""When rounds begin and end, and what the ranks' heads say: decisions, without ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casync.errors import InvalidArgumentError
from casync.relaxed.head import head, hear
from casync.relaxed.schedule import Schedule


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    every = draw(st.integers(1, 40))
    return Schedule(every, draw(st.integers(1, every)), draw(st.integers(0, every - 1)), draw(st.integers(0, 10)))


@given(schedules())
def test_each_fragment_begins_once_in_sync_every_steps(schedule: Schedule) -> None:
    begun = {
        step: list(schedule.begins(step)) for step in range(1, schedule.warmup_steps + 3 * schedule.sync_every + 1)
    }
    assert not any(begun[step] for step in range(1, schedule.warmup_steps + 1))
    for turn in range(3):
        first = schedule.warmup_steps + turn * schedule.sync_every
        order = [fragment for step in range(first + 1, first + schedule.sync_every + 1) for fragment in begun[step]]
        assert order == list(range(schedule.fragments))
    assert max(map(len, begun.values())) == 1


@given(schedules())
def test_the_rounds_of_several_fragments_are_spread_evenly(schedule: Schedule) -> None:
    begun = [
        step for step in range(1, 4 * schedule.sync_every + 1) for _ in schedule.begins(step + schedule.warmup_steps)
    ]
    gaps = {later - earlier for earlier, later in zip(begun, begun[1:], strict=False)}
    assert max(gaps) - min(gaps) <= 1


@given(schedules())
def test_a_round_ends_before_the_next_of_its_fragment_begins(schedule: Schedule) -> None:
    assert schedule.sends_at(7) <= schedule.ends_at(7) == 7 + schedule.delay < 7 + schedule.sync_every


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ((0,), "sync_every=0"),
        ((2.0,), "sync_every=2.0"),
        ((True,), "sync_every=True"),
        ((4, 0), "fragments=0"),
        ((4, 5), "5 fragments and sync_every=4"),
        ((4, 1, 4), "fragment_sync_delay=4"),
        ((4, 1, -1), "delay=-1"),
        ((4, 1, 0, -1), "warmup_steps=-1"),
    ],
)
def test_what_cannot_be_is_refused(settings: tuple[int, ...], names: str) -> None:
    with pytest.raises(InvalidArgumentError, match=names):
        Schedule(*settings)


def summed(*heads: list[float]) -> list[float]:
    return [math.fsum(numbers) for numbers in zip(*heads, strict=True)]


def told(
    rank: int, size: int, weight: float = 1.0, *, finite: bool = True, done: bool = False, place: int = 1
) -> list[float]:
    return head(rank, size, weight=weight, is_finite=finite, is_done=done, place=place, samples=(1.0, float(rank)))


def absent(size: int) -> list[float]:
    return [0.0] * len(told(0, size))


def test_weights_come_through_and_an_absent_rank_has_none() -> None:
    heard = hear(summed(told(0, 4, 3.0), told(1, 4, 0.0, done=True), absent(4), told(3, 4, 0.5)))
    assert heard.weights == (3.0, 0.0, 0.0, 0.5)
    assert (heard.broken, heard.all_done, heard.same_place) == ((), False, True)
    assert heard.spread == pytest.approx(0.5 * 9 / 3.5 - (0.5 * 3 / 3.5) ** 2)
    assert sum(heard.factor(rank) for rank in range(4)) == pytest.approx(4)


def test_a_rank_whose_change_is_not_finite_is_named() -> None:
    heard = hear(summed(told(0, 3), told(1, 3, finite=False), told(2, 3)))
    assert heard.broken == (1,)
    assert not heard.all_done


def test_all_have_ended_when_all_that_are_present_say_so() -> None:
    assert hear(summed(told(0, 3, done=True), absent(3), told(2, 3, 0.0, done=True))).all_done
    assert not hear(summed(told(0, 3, done=True), told(1, 3), told(2, 3, done=True))).all_done


@given(st.lists(st.integers(1, 2**31), min_size=1, max_size=9), st.booleans())
def test_different_places_are_seen_by_all(places: list[int], alike: bool) -> None:
    places = [places[0]] * len(places) if alike else places
    heard = hear(summed(*(told(rank, len(places), place=place) for rank, place in enumerate(places))))
    assert heard.same_place == (len({place % 2**20 for place in places}) == 1)

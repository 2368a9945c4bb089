"""init(comm=[...]): worlds of some ranks, one after another, of which the other ranks need not know."""

import time

import pytest

from support.ranks import LIMITS


@pytest.fixture(autouse=True)
def none_open(hvd, world, rank, size):
    """Each test opens its own worlds, and leaves one of all ranks."""
    hvd.shutdown()
    yield
    hvd.init(**LIMITS)


@pytest.fixture
def live(adaptor, hvd):
    """`live(ranks)`: one world from init() to shutdown(), on its ranks."""

    def life(ranks: list[int] | None, **settings) -> None:
        hvd.init(comm=ranks, **LIMITS, **settings)
        members = ranks or list(range(hvd.size()))
        assert hvd.size() == len(members)
        mine = members[hvd.rank()]
        assert hvd.allgather_object(mine) == members
        adaptor.assert_filled(hvd.allreduce(adaptor.full(5000, mine), op=hvd.Sum), 5000, sum(members))
        hvd.barrier()
        hvd.shutdown()

    return life


def test_ranks_skip_the_worlds_that_they_are_not_in(live, rank, size):
    some = list(range(size - 1)) or [0]
    for _ in range(3):
        if rank in some:
            live(some)
    live(None)


def test_worlds_that_overlap(live, rank, size):
    """Each rank has a history of its own."""
    for ranks in ([0], [0, 1], [1, 2], [2, 0], [2], [1, 2], [0, 1, 2], None, [1], [0, 1], None):
        members = [member for member in ranks if member < size] if ranks else None
        if members is None or rank in members:
            live(members)


def test_all_ranks_by_their_numbers_are_all_ranks(live, rank, size):
    for turn in range(4):
        live(None if (rank + turn) % 2 else list(range(size)))


def test_worlds_with_process_sets(hvd, live, rank, size):
    if size < 3:
        pytest.skip("needs a set in a world that is not all ranks")
    for ranks in ([0, 1], [1, 2], None, [1, 2]):
        if ranks is None or rank in ranks:
            live(ranks, process_sets=[hvd.ProcessSet([1])])


def test_a_world_without_this_rank_is_refused_and_costs_nothing(hvd, live, rank, size):
    if size < 2:
        pytest.skip("a world of one is refused as such")
    others = [other for other in range(size) if other != rank]
    with pytest.raises(ValueError, match=f"must be distinct ranks .* with this one, {rank}"):
        hvd.init(comm=others)
    assert not hvd.is_initialized()
    for ranks in ([0, 1], None):
        if ranks is None or rank in ranks:
            live(ranks)


def test_a_rank_that_comes_late_to_init_is_waited_for(hvd, rank, size):
    """Beyond the warning, which is casyncrun's here (tests/python/faults/test_life.py)."""
    if rank > 0:
        time.sleep(0.5)
    hvd.init(timeout_s=20.0, stall_warning_s=0.1)
    hvd.barrier()
    hvd.shutdown()

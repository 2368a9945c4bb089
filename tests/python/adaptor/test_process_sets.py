"""Process sets: which there are, and how ranks agree on them."""

import copy
import pickle

import pytest

from casync.session import default
from support.ranks import LIMITS


@pytest.fixture(autouse=True)
def dynamic(hvd, world, monkeypatch):
    """Every test may add sets."""
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(**LIMITS)


@pytest.fixture
def sets(hvd, size):
    """The even ranks and the odd ones."""
    if size < 2:
        pytest.skip("a world of one has no smaller set")
    return [hvd.add_process_set(range(first, size, 2)) for first in (0, 1)]


@pytest.fixture
def mine(sets, rank):
    """The one of `sets` that this rank is in."""
    return sets[rank % 2]


# --- which sets there are ---------------------------------------------------------------------------------------------


def test_a_set_in_use_is_copied_as_itself_and_pickled_by_its_ranks(hvd, sets):
    settings = copy.deepcopy({"process_set": sets[0], "other": sets[1]})
    assert settings["process_set"] is sets[0] and copy.copy(sets[1]) is sets[1]
    loaded = pickle.loads(pickle.dumps(sets[0]))
    assert (loaded.ranks, loaded.process_set_id) == (sets[0].ranks, None)
    assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set


def test_what_sets_say_of_themselves(hvd, rank, size, sets):
    for first, one in enumerate(sets):
        ranks = list(range(first, size, 2))
        assert (one.process_set_id, one.ranks, one.size()) == (1 + first, ranks, len(ranks))
        assert str(one) == f"ProcessSet(process_set_id={1 + first}, ranks={ranks}, mpi_comm=None)"
        assert one.included() is (rank in ranks)
    assert sets[rank % 2].rank() == rank // 2
    with pytest.raises(ValueError, match=f"Rank {rank} is not a member of the provided process set"):
        sets[1 - rank % 2].rank()
    world = hvd.global_process_set
    assert (world.process_set_id, world.ranks, world.rank(), world.size()) == (0, list(range(size)), rank, size)
    assert world.included() is True


def test_a_set_that_is_not_in_use(adaptor, hvd, size):
    one = hvd.ProcessSet([0])
    assert (one.process_set_id, one.size(), one.rank(), one.included()) == (None, None, None, None)
    for call in (
        lambda: hvd.barrier(process_set=one),
        lambda: hvd.allreduce(adaptor.ones(1), process_set=one),
        lambda: hvd.allgather(adaptor.ones(1), process_set=one),
    ):
        with pytest.raises(ValueError, match=r"Process set provided does not exist.*ranks=\[0\].*add_process_set"):
            call()
    assert hvd.remove_process_set(one) is False


def test_a_name_that_several_sets_use_again(adaptor, hvd, rank, size, mine):
    """Each set has its own operation of that name, and a handle says which set it is of."""
    submit = hvd.allreduce_async_ if adaptor.in_place else hvd.allreduce_async
    for turn in range(3):
        ours, everyones = adaptor.full(9, rank), adaptor.full(9, turn)
        handles = [
            submit(ours, name="again", op=hvd.Sum, process_set=mine),
            submit(everyones, name="again", op=hvd.Sum),
        ]
        assert [handle >> 48 for handle in handles] == [mine.process_set_id, 0]
        of_all, of_set = hvd.synchronize(handles[1]), hvd.synchronize(handles[0])
        assert not adaptor.in_place or (of_all is everyones and of_set is ours)
        adaptor.assert_filled(of_set, 9, sum(mine.ranks))
        adaptor.assert_filled(of_all, 9, turn * size)


def test_removed_sets_are_gone_and_their_numbers_not_given_again(adaptor, hvd, rank, size, sets, mine):
    handle = hvd.allreduce_async(adaptor.ones(3), name="last", op=hvd.Sum, process_set=mine)
    hvd.synchronize(handle)
    assert hvd.remove_process_set(sets[0]) is True
    assert hvd.remove_process_set(sets[0]) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert default.process_sets().ids_and_ranks() == {0: list(range(size)), 2: list(range(1, size, 2))}
    assert sets[0].process_set_id is None and sets[0].ranks == list(range(0, size, 2))
    if rank % 2 == 0:
        with pytest.raises(ValueError, match="process set 1, which was removed"):
            hvd.synchronize(handle)
        with pytest.raises(ValueError, match="does not exist"):
            hvd.barrier(process_set=sets[0])
    else:
        hvd.barrier(process_set=sets[1])
    again = hvd.add_process_set(sets[0])
    assert again is sets[0] and again.process_set_id == 3
    if again.included():
        adaptor.assert_filled(hvd.allreduce(adaptor.ones(3), op=hvd.Sum, process_set=again), 3, len(again.ranks))


def test_duplicates_are_refused_on_all_ranks(hvd, size, sets):
    for ranks in (range(size), range(size - 1, -1, -1), sets[0].ranks, sets[1].ranks[::-1]):
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.add_process_set(hvd.ProcessSet(ranks))
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set(sets[1])
    assert sets[1].process_set_id == 2


@pytest.mark.parametrize("ranks", [[], [-1], [0, 0], [99]])
def test_ranks_that_cannot_be_a_set(hvd, ranks, size):
    with pytest.raises(ValueError, match=f"give one or more distinct ranks of 0 to {size - 1}"):
        hvd.add_process_set(ranks)


@pytest.mark.parametrize("ranks", [None, 3, ["0"], [0.5]])
def test_what_is_no_list_of_ranks(hvd, ranks):
    with pytest.raises(ValueError, match="neither a list of process ranks nor an mpi4py Comm object"):
        hvd.ProcessSet(ranks)


def test_ranks_that_disagree_are_told_both_sides(adaptor, hvd, rank, size):
    if size < 2:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called add_process_set\(\[0\]\) and rank 1 .*\(\[1\]\)"):
        hvd.add_process_set([min(rank, 1)])
    one = hvd.add_process_set([0])
    call = (lambda: hvd.remove_process_set(one)) if rank == 0 else (lambda: hvd.add_process_set([1]))
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called remove.*\[1, \[0\]\].* rank 1 add_process_set"):
        call()
    assert one.process_set_id == 1 and hvd.allreduce(adaptor.ones(2), op=hvd.Sum)[0] == size


def test_sets_are_added_only_where_that_was_announced(hvd, size, monkeypatch):
    hvd.shutdown()
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS")
    hvd.init(**LIMITS)
    for call, what in ((hvd.add_process_set, "adding"), (hvd.remove_process_set, "removing")):
        with pytest.raises(ValueError, match=f"HOROVOD_DYNAMIC_PROCESS_SETS=1.* to allow {what}"):
            call(hvd.ProcessSet([0]))
    hvd.shutdown()
    hvd.init(process_sets="dynamic", **LIMITS)
    if size > 1:
        assert hvd.add_process_set([0]).process_set_id == 1
    with pytest.raises(ValueError, match="'static': give a list of ProcessSet, or 'dynamic'"):
        hvd.shutdown()
        hvd.init(process_sets="static")


def test_sets_given_to_init(adaptor, hvd, rank, size):

    if size < 2:
        pytest.skip("a world of one has no smaller set")
    hvd.shutdown()
    orders = [range(1, size), reversed(range(1, size))]  # a permuted set is the same
    wanted = [hvd.ProcessSet([0]), hvd.ProcessSet(orders[rank > 0])]
    for duplicate in (hvd.ProcessSet([0]), hvd.ProcessSet(range(size - 1, -1, -1))):
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.init(process_sets=[*wanted, duplicate], **LIMITS)
        assert hvd.is_initialized() and hvd.size() == size
    for _ in range(2):
        hvd.init(process_sets=wanted, **LIMITS)
    with pytest.raises(ValueError, match="does not exist.* first init"):
        hvd.init(process_sets=[hvd.ProcessSet([size - 1])] if size > 2 else [hvd.ProcessSet([0, 7])])
    assert default.process_sets().ids_and_ranks() == {
        0: list(range(size)),
        1: [0],
        2: list(range(1, size)),
    }
    assert [one.process_set_id for one in wanted] == [1, 2]
    one = wanted[rank > 0]
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(4), op=hvd.Sum, process_set=one), 4, len(one.ranks))


def test_sets_of_a_later_init(hvd, rank, size):
    """The first init() that is given sets takes them into use; objects of the same ranks may take their place."""
    if size < 2:
        pytest.skip("a world of one has no smaller set")
    first, again = hvd.ProcessSet([0]), hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    hvd.init(process_sets=[again])
    assert (first.process_set_id, first.included()) == (None, None)
    assert again.process_set_id == 1 and again.included() is (rank == 0)
    assert hvd.remove_process_set(again) is True


def test_ranks_that_give_init_different_sets(adaptor, hvd, rank, size):
    if size < 2:
        pytest.skip("one rank agrees with itself")
    hvd.shutdown()
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called init\(process_sets=\[\[0\]\]\) and rank 1 .*\[\[1\]\]"):
        hvd.init(process_sets=[hvd.ProcessSet([min(rank, 1)])], **LIMITS)
    hvd.init(**LIMITS)
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(2), op=hvd.Sum), 2, size)


def test_sets_given_as_communicators(adaptor, hvd, rank, size):
    from mpi4py import MPI

    if size < 2:
        pytest.skip("a world of one has no smaller set")
    hvd.shutdown()
    comm = MPI.COMM_WORLD.Split(rank % 2)
    try:
        one = hvd.ProcessSet(comm)
        hvd.init(comm=MPI.COMM_WORLD, process_sets=[one], **LIMITS)
        assert hvd.global_process_set.mpi_comm is MPI.COMM_WORLD and one.mpi_comm is comm
        assert one.ranks == list(range(rank % 2, size, 2)) and one.process_set_id == 1 + rank % 2
        adaptor.assert_filled(hvd.allreduce(adaptor.ones(4), op=hvd.Sum, process_set=one), 4, comm.Get_size())
        with pytest.raises(NotImplementedError, match="list of ranks"):
            hvd.add_process_set(comm)
    finally:
        comm.Free()


def test_communicators_and_lists_are_numbered_in_one_order(adaptor, hvd, rank, size):
    """Only ranks of whose list two are alike are told so; the sets are in use on all."""
    from mpi4py import MPI

    if size < 2:
        pytest.skip("a world of one has no smaller set")
    hvd.shutdown()
    comm = MPI.COMM_WORLD.Split(rank % 2)
    try:
        lists = [hvd.ProcessSet(range(0, size, 2)), hvd.ProcessSet([size - 1])]
        if rank % 2 == 0 or size == 2:
            with pytest.raises(ValueError, match="duplicate process set"):
                hvd.init(process_sets=[hvd.ProcessSet(comm), *lists], **LIMITS)
        else:
            hvd.init(process_sets=[hvd.ProcessSet(comm), *lists], **LIMITS)
        one = hvd.ProcessSet(comm)
        hvd.init(process_sets=[one], **LIMITS)
        expected = [list(range(size)), list(range(0, size, 2)), list(range(1, size, 2))]
        if [size - 1] not in expected:
            expected.append([size - 1])
        assert default.process_sets().ids_and_ranks() == dict(enumerate(expected))
        adaptor.assert_filled(hvd.allreduce(adaptor.ones(4), op=hvd.Sum, process_set=one), 4, comm.Get_size())
    finally:
        comm.Free()

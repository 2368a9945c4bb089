"""Operations among some of the ranks, against what is computed here."""

import numpy as np
import pytest

from casync.session import default
from support.arrays import draw, full, normal
from support.ranks import LIMITS


@pytest.fixture
def sets(hvd, several, size, monkeypatch):
    """The even ranks and the odd ones."""
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(**LIMITS)
    return [hvd.add_process_set(range(first, size, 2)) for first in (0, 1)]


@pytest.fixture
def mine(sets, rank):
    """The one of `sets` that this rank is in."""
    return sets[rank % 2]


def test_only_members_submit(adaptor, hvd, rank, sets):
    other = sets[1 - rank % 2]
    before = hvd.counters()["sent_messages"]
    for call in (
        lambda: hvd.allreduce(adaptor.ones(3), process_set=other),
        lambda: hvd.grouped_allreduce([adaptor.ones(3)], process_set=other),
        lambda: hvd.allgather(adaptor.ones(3), process_set=other),
        lambda: hvd.broadcast(adaptor.ones(3), other.ranks[0], process_set=other),
        lambda: hvd.alltoall(adaptor.ones(3), [1] * other.size(), process_set=other),
        lambda: hvd.reducescatter(adaptor.ones(3), process_set=other),
        lambda: hvd.broadcast_object(3, other.ranks[0], process_set=other),
        lambda: hvd.allgather_object(3, process_set=other),
        lambda: hvd.barrier(process_set=other),
    ):
        with pytest.raises(ValueError, match=f"Rank {rank} is not a member of the provided process set"):
            call()
    assert hvd.counters()["sent_messages"] == before
    hvd.barrier()  # nobody runs ahead while another rank counts


OPS = {"Sum": np.sum, "Average": np.mean, "Min": np.min, "Max": np.max, "Product": np.prod}


@pytest.mark.parametrize("numel", [1, 3000, 200_000])
@pytest.mark.parametrize("op", OPS)
def test_allreduce(adaptor, hvd, rank, size, mine, rng, op, numel):
    arrays = rng.integers(1, 9, (size, numel)).astype(np.float32)
    expected = OPS[op](arrays[mine.ranks].astype(np.float64), axis=0)
    own, op = adaptor.tensor(arrays[rank]), getattr(hvd, op)
    results = [hvd.allreduce(own, op=op, name="a", process_set=mine)]
    results += hvd.grouped_allreduce([own], op=op, process_set=mine)
    if adaptor.in_place:
        assert hvd.allreduce_(own, op=op, process_set=mine) is own
        results.append(own)
    for result in results:
        adaptor.assert_close(result, expected, rtol=1e-6)


def test_one_name_in_several_sets_at_once(adaptor, hvd, size, mine):
    handles = [
        hvd.allreduce_async(adaptor.ones(2000), name="same", op=hvd.Sum, process_set=where)
        for where in (mine, hvd.global_process_set)
    ]
    assert len(set(handles)) == 2
    for handle, ranks in zip(handles, (len(mine.ranks), size), strict=True):
        adaptor.assert_filled(hvd.synchronize(handle), 2000, ranks)
    assert all(hvd.synchronize(handle) is None for handle in handles)


def test_allgather(adaptor, hvd, rank, mine):
    result = hvd.allgather(adaptor.full((rank + 1, 2), rank), process_set=mine)
    adaptor.assert_equal(result, np.concatenate([full((r + 1, 2), r) for r in mine.ranks]))
    assert hvd.allgather_object({"rank": rank}, process_set=mine) == [{"rank": r} for r in mine.ranks]


def test_reducescatter_alltoall_and_groups(adaptor, hvd, rank, mine):
    """Splits, rows and divisors are those of the set."""
    members, own = mine.ranks, mine.rank()
    n, total = len(members), sum(members)
    tensor = adaptor.full((2 * n, 3), rank)
    adaptor.assert_filled(hvd.reducescatter(tensor, op=hvd.Sum, process_set=mine), (2, 3), total)
    adaptor.assert_close(hvd.reducescatter(tensor, process_set=mine), np.full((2, 3), total / n), rtol=1e-6)
    output, counts = hvd.alltoall(adaptor.full(n, rank), [1] * n, process_set=mine)
    adaptor.assert_equal(output, np.array(members, np.float32))
    adaptor.assert_counts(counts, full(n, 1, "int32"))
    handle = hvd.grouped_allreduce_async([adaptor.full(2, rank), adaptor.full(2, rank)], op=hvd.Sum, process_set=mine)
    while not hvd.poll(handle):
        pass
    for result in hvd.synchronize(handle):
        adaptor.assert_filled(result, 2, total)
    gathered, _ = hvd.grouped_allgather([adaptor.full(own, rank, "int64"), adaptor.ones(1)], process_set=mine)
    adaptor.assert_equal(gathered, np.array([r for i, r in enumerate(members) for _ in range(i)], np.int64))
    (scattered,) = hvd.grouped_reducescatter([adaptor.full((n, 2), rank)], op=hvd.Sum, process_set=mine)
    adaptor.assert_filled(scattered, (1, 2), total)


def test_roots_are_ranks_in_the_world(adaptor, hvd, rank, mine, sets):
    for root in mine.ranks:
        mine_now = adaptor.full(5, rank)
        adaptor.assert_filled(hvd.broadcast(mine_now, root, process_set=mine), 5, root)
        assert hvd.broadcast_object(f"of {rank}", root, process_set=mine) == f"of {root}"
        if adaptor.in_place:
            assert hvd.broadcast_(mine_now, root, process_set=mine) is mine_now
            adaptor.assert_filled(mine_now, 5, root)
    for root in (*sets[1 - rank % 2].ranks, -1):
        with pytest.raises(ValueError, match=rf"broadcast received invalid root rank {root}: .* one of \[{rank % 2}"):
            hvd.broadcast(adaptor.ones(5), root, process_set=mine)


def test_a_set_does_not_wait_for_another(adaptor, hvd, rank, size, sets):
    """Rank 0 is late in one set until rank 1 has finished in another, of which it tells over the world."""
    for one in sets:
        hvd.remove_process_set(one)
    late, other = hvd.add_process_set([0, *range(2, size)]), hvd.add_process_set(range(1, size))
    waiting = None
    if rank >= 2:
        waiting = hvd.allreduce_async(adaptor.ones(50_000), name="late", op=hvd.Sum, process_set=late)
    if rank >= 1:
        for step in range(5):
            hvd.barrier(process_set=other)
            total = hvd.allreduce(adaptor.full(50_000, step), name="other", op=hvd.Sum, process_set=other)
            adaptor.assert_filled(total, 50_000, step * (size - 1))
    if waiting is not None:
        assert not hvd.poll(waiting)
    hvd.broadcast(adaptor.ones(1), 1, name="rank 1 is through")
    hvd.barrier()
    if rank == 0:
        waiting = hvd.allreduce_async(adaptor.ones(50_000), name="late", op=hvd.Sum, process_set=late)
    if waiting is not None:
        adaptor.assert_filled(hvd.synchronize(waiting), 50_000, size - 1)


def test_ranks_of_a_set_that_disagree_leave_the_other_set_alone(adaptor, hvd, rank, size, sets, mine):
    if size < 3:
        pytest.skip("a smaller set with two ranks in it needs three")
    for turn in range(2):
        if mine is sets[0] and turn == 0:
            with pytest.raises(hvd.MismatchError, match="allreduce.x"):
                hvd.allreduce(adaptor.ones(3 + (rank == 0)), name="x", process_set=mine)
        result = hvd.allreduce(adaptor.ones(3), op=hvd.Sum, name="x", process_set=mine)
        adaptor.assert_filled(result, 3, len(mine.ranks))
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(3), op=hvd.Sum, name="x"), 3, size)


@pytest.mark.parametrize("codec", ["onebit", "powersgd(rank=2)", "dgc(ratio=0.1)"])
def test_a_set_has_codec_state_of_its_own(adaptor, hvd, rank, size, mine, rng, codec):
    """Both sets and the world compress a tensor of one name; in each, what was not delivered is in its residuals."""
    shape, steps = (100, 120), 4
    gradients = [normal(rng, shape, "float32", size) for _ in range(steps)]
    delivered = {}
    for step in range(steps):
        for where in (mine, hvd.global_process_set):
            own = adaptor.tensor(gradients[step][rank])
            result = hvd.allreduce(own, op=hvd.Sum, name="w", compression=codec, process_set=where)
            adaptor.assert_same_bits_everywhere(result, where)
            delivered[where] = delivered.get(where, 0) + adaptor.array(result)
    for where in (mine, hvd.global_process_set):
        states = default.session_of(where).codec_states
        kept = states.residual("allreduce.w") if "allreduce.w" in states.residual_names() else np.zeros(0, np.float32)
        if not kept.size:
            arrays = states.state("allreduce.w")["arrays"] if "allreduce.w" in states.state_names() else {}
            kept = next((array["values"] for array in arrays.values() if array["pending"]), np.zeros(shape, np.float32))
        pending = hvd.allreduce(adaptor.tensor(kept.reshape(shape)), op=hvd.Sum, process_set=where)
        expected = sum(gradients[step][r].astype(np.float64) for step in range(steps) for r in where.ranks)
        got = delivered[where].astype(np.float64) + adaptor.array(pending)
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


def test_many_small_operations_of_both_sets_and_the_world(adaptor, hvd, rank, size, mine, rng):
    """In another order on each rank."""
    arrays = draw(rng, (30, 7), "float64", size)
    wheres = {"set": mine, "world": hvd.global_process_set}
    order = [(i, name) for i in range(30) for name in wheres]
    order.sort(key=lambda one: (one[0] * 37 + rank * 11 + (one[1] == "set")) % 30)
    handles = {}
    for i, name in order:
        own = adaptor.tensor(arrays[rank][i])
        handles[i, name] = hvd.allreduce_async(own, op=hvd.Max, name=f"t{i}", process_set=wheres[name])
    for (i, name), handle in handles.items():
        members = wheres[name].ranks
        adaptor.assert_equal(hvd.synchronize(handle), np.max([arrays[r][i] for r in members], axis=0))

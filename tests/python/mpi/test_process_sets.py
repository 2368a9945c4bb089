"""Process sets: how ranks agree on them, and operations among some of the ranks against what is computed here."""

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync import default

TIMES = {"timeout_s": 20.0, "stall_warning_s": 10.0}


@pytest.fixture(autouse=True)
def dynamic(world, monkeypatch):
    """Every test may add sets."""
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.shutdown()
    hvd.init(**TIMES)


@pytest.fixture
def sets(size):
    """The even ranks and the odd ones."""
    if size < 2:
        pytest.skip("a world of one has no smaller set")
    return [hvd.add_process_set(range(first, size, 2)) for first in (0, 1)]


@pytest.fixture
def mine(sets, rank):
    """The one of `sets` that this rank is in."""
    return sets[rank % 2]


# --- which sets there are ---------------------------------------------------------------------------------------------


def test_what_sets_say_of_themselves(rank, size, sets):
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


def test_a_set_that_is_not_in_use(size):
    one = hvd.ProcessSet([0])
    assert (one.process_set_id, one.size(), one.rank(), one.included()) == (None, None, None, None)
    for call in (
        lambda: hvd.barrier(process_set=one),
        lambda: hvd.allreduce(torch.ones(1), process_set=one),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1), process_set=one),
    ):
        with pytest.raises(ValueError, match=r"Process set provided does not exist.*ranks=\[0\].*add_process_set"):
            call()
    assert hvd.remove_process_set(one) is False


def test_a_name_that_several_sets_use_again(rank, size, mine):
    """Each set has its own operation of that name, and a handle says which set it is of."""
    for turn in range(3):
        ours, everyones = torch.full((9,), float(rank)), torch.full((9,), float(turn))
        handles = [
            hvd.allreduce_async_(ours, name="again", op=hvd.Sum, process_set=mine),
            hvd.allreduce_async_(everyones, name="again", op=hvd.Sum),
        ]
        assert [handle >> 48 for handle in handles] == [mine.process_set_id, 0]
        assert hvd.synchronize(handles[1]) is everyones and hvd.synchronize(handles[0]) is ours
        assert torch.equal(ours, torch.full((9,), float(sum(mine.ranks))))
        assert torch.equal(everyones, torch.full((9,), float(turn * size)))


def test_removed_sets_are_gone_and_their_numbers_not_given_again(rank, size, sets, mine):
    handle = hvd.allreduce_async(torch.ones(3), name="last", op=hvd.Sum, process_set=mine)
    hvd.synchronize(handle)
    assert hvd.remove_process_set(sets[0]) is True
    assert hvd.remove_process_set(sets[0]) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(size)), 2: list(range(1, size, 2))}
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
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=again)[0] == len(again.ranks)


def test_duplicates_are_refused_on_all_ranks(size, sets):
    for ranks in (range(size), range(size - 1, -1, -1), sets[0].ranks, sets[1].ranks[::-1]):
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.add_process_set(hvd.ProcessSet(ranks))
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set(sets[1])
    assert sets[1].process_set_id == 2


@pytest.mark.parametrize("ranks", [[], [-1], [0, 0], [99]])
def test_ranks_that_cannot_be_a_set(ranks, size):
    with pytest.raises(ValueError, match=f"give one or more distinct ranks of 0 to {size - 1}"):
        hvd.add_process_set(ranks)


@pytest.mark.parametrize("ranks", [None, 3, ["0"], [0.5]])
def test_what_is_no_list_of_ranks(ranks):
    with pytest.raises(ValueError, match="neither a list of process ranks nor an mpi4py Comm object"):
        hvd.ProcessSet(ranks)


def test_ranks_that_disagree_are_told_both_sides(rank, size):
    if size < 2:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called add_process_set\(\[0\]\) and rank 1 .*\(\[1\]\)"):
        hvd.add_process_set([min(rank, 1)])
    one = hvd.add_process_set([0])
    call = (lambda: hvd.remove_process_set(one)) if rank == 0 else (lambda: hvd.add_process_set([1]))
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called remove.*\[1, \[0\]\].* rank 1 add_process_set"):
        call()
    assert one.process_set_id == 1 and hvd.allreduce(torch.ones(2), op=hvd.Sum)[0] == size


def test_sets_are_added_only_where_that_was_announced(size, monkeypatch):
    hvd.shutdown()
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS")
    hvd.init(**TIMES)
    for call, what in ((hvd.add_process_set, "adding"), (hvd.remove_process_set, "removing")):
        with pytest.raises(ValueError, match=f"HOROVOD_DYNAMIC_PROCESS_SETS=1.* to allow {what}"):
            call(hvd.ProcessSet([0]))
    hvd.shutdown()
    hvd.init(process_sets="dynamic", **TIMES)
    if size > 1:
        assert hvd.add_process_set([0]).process_set_id == 1
    with pytest.raises(ValueError, match="'static': give a list of ProcessSet, or 'dynamic'"):
        hvd.shutdown()
        hvd.init(process_sets="static")


def test_sets_given_to_init(rank, size):

    if size < 2:
        pytest.skip("a world of one has no smaller set")
    hvd.shutdown()
    orders = [range(1, size), reversed(range(1, size))]  # a permuted set is the same
    wanted = [hvd.ProcessSet([0]), hvd.ProcessSet(orders[rank > 0])]
    for duplicate in (hvd.ProcessSet([0]), hvd.ProcessSet(range(size - 1, -1, -1))):
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.init(process_sets=[*wanted, duplicate], **TIMES)
        assert hvd.is_initialized() and hvd.size() == size
    for _ in range(2):
        hvd.init(process_sets=wanted, **TIMES)
    with pytest.raises(ValueError, match="does not exist.* first init"):
        hvd.init(process_sets=[hvd.ProcessSet([size - 1])] if size > 2 else [hvd.ProcessSet([0, 7])])
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {
        0: list(range(size)),
        1: [0],
        2: list(range(1, size)),
    }
    assert [one.process_set_id for one in wanted] == [1, 2]
    one = wanted[rank > 0]
    assert hvd.allreduce(torch.ones(4), op=hvd.Sum, process_set=one)[0] == len(one.ranks)


def test_sets_of_a_later_init(rank, size):
    """The first init() that is given sets takes them into use; objects of the same ranks may take their place."""
    if size < 2:
        pytest.skip("a world of one has no smaller set")
    first, again = hvd.ProcessSet([0]), hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    hvd.init(process_sets=[again])
    assert (first.process_set_id, first.included()) == (None, None)
    assert again.process_set_id == 1 and again.included() is (rank == 0)
    assert hvd.remove_process_set(again) is True


def test_ranks_that_give_init_different_sets(rank, size):
    if size < 2:
        pytest.skip("one rank agrees with itself")
    hvd.shutdown()
    with pytest.raises(hvd.MismatchError, match=r"rank 0 called init\(process_sets=\[\[0\]\]\) and rank 1 .*\[\[1\]\]"):
        hvd.init(process_sets=[hvd.ProcessSet([min(rank, 1)])], **TIMES)
    hvd.init(**TIMES)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum)[0] == size


def test_sets_given_as_communicators(rank, size):
    from mpi4py import MPI

    if size < 2:
        pytest.skip("a world of one has no smaller set")
    hvd.shutdown()
    comm = MPI.COMM_WORLD.Split(rank % 2)
    try:
        one = hvd.ProcessSet(comm)
        hvd.init(comm=MPI.COMM_WORLD, process_sets=[one], **TIMES)
        assert hvd.global_process_set.mpi_comm is MPI.COMM_WORLD and one.mpi_comm is comm
        assert one.ranks == list(range(rank % 2, size, 2)) and one.process_set_id == 1 + rank % 2
        assert hvd.allreduce(torch.ones(4), op=hvd.Sum, process_set=one)[0] == comm.Get_size()
        with pytest.raises(NotImplementedError, match="list of ranks"):
            hvd.add_process_set(comm)
    finally:
        comm.Free()


def test_communicators_and_lists_are_numbered_in_one_order(rank, size):
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
                hvd.init(process_sets=[hvd.ProcessSet(comm), *lists], **TIMES)
        else:
            hvd.init(process_sets=[hvd.ProcessSet(comm), *lists], **TIMES)
        one = hvd.ProcessSet(comm)
        hvd.init(process_sets=[one], **TIMES)
        expected = [list(range(size)), list(range(0, size, 2)), list(range(1, size, 2))]
        if [size - 1] not in expected:
            expected.append([size - 1])
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == dict(enumerate(expected))
        assert hvd.allreduce(torch.ones(4), op=hvd.Sum, process_set=one)[0] == comm.Get_size()
    finally:
        comm.Free()


# --- operations -------------------------------------------------------------------------------------------------------


def test_only_members_submit(rank, sets):
    other = sets[1 - rank % 2]
    before = hvd.counters()["sent_messages"]
    for call in (
        lambda: hvd.allreduce(torch.ones(3), process_set=other),
        lambda: hvd.grouped_allreduce([torch.ones(3)], process_set=other),
        lambda: hvd.allgather(torch.ones(3), process_set=other),
        lambda: hvd.broadcast(torch.ones(3), other.ranks[0], process_set=other),
        lambda: hvd.broadcast_object(3, other.ranks[0], process_set=other),
        lambda: hvd.allgather_object(3, process_set=other),
        lambda: hvd.barrier(process_set=other),
    ):
        with pytest.raises(ValueError, match=f"Rank {rank} is not a member of the provided process set"):
            call()
    assert hvd.counters()["sent_messages"] == before
    hvd.barrier()  # nobody runs ahead while another rank counts


@pytest.mark.parametrize("numel", [1, 3000, 200_000])
@pytest.mark.parametrize(("op", "combine"), [
    (hvd.Sum, np.sum), (hvd.Average, np.mean), (hvd.Min, np.min), (hvd.Max, np.max), (hvd.Product, np.prod),
])  # fmt: skip
def test_allreduce(rank, size, mine, rng, op, combine, numel):
    tensors = rng.integers(1, 9, (size, numel)).astype(np.float32)
    expected = torch.from_numpy(combine(tensors[mine.ranks].astype(np.float64), axis=0).astype(np.float32))
    own = torch.from_numpy(tensors[rank])
    result = hvd.allreduce(own, op=op, name="a", process_set=mine)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(hvd.grouped_allreduce([own], op=op, process_set=mine)[0], expected, rtol=1e-6, atol=0)
    hvd.allreduce_(own, op=op, process_set=mine)
    torch.testing.assert_close(own, expected, rtol=1e-6, atol=0)


def test_one_name_in_several_sets_at_once(rank, size, mine):
    handles = [hvd.allreduce_async(torch.full((2000,), 1.0), name="same", op=hvd.Sum, process_set=where)
               for where in (mine, hvd.global_process_set)]  # fmt: skip
    assert len(set(handles)) == 2
    assert [float(hvd.synchronize(handle)[-1]) for handle in handles] == [len(mine.ranks), size]
    assert all(hvd.synchronize(handle) is None for handle in handles)


def test_allgather(rank, mine):
    own = torch.full((rank + 1, 2), float(rank))
    expected = torch.cat([torch.full((r + 1, 2), float(r)) for r in mine.ranks])
    assert torch.equal(hvd.allgather(own, process_set=mine), expected)
    assert hvd.allgather_object({"rank": rank}, process_set=mine) == [{"rank": r} for r in mine.ranks]


def test_reducescatter_alltoall_groups_and_sparse_tensors(rank, size, mine):
    """Splits, rows and divisors are those of the set."""
    members, own = mine.ranks, mine.rank()
    n, total = len(members), float(sum(members))
    tensor = torch.full((2 * n, 3), float(rank), requires_grad=True)
    scattered = hvd.reducescatter(tensor, op=hvd.Sum, process_set=mine)
    assert torch.equal(scattered, torch.full((2, 3), total))
    scattered.sum().backward()
    assert torch.equal(tensor.grad, torch.full((2 * n, 3), float(n)))
    output, counts = hvd.alltoall(torch.full((n,), float(rank)), [1] * n, process_set=mine)
    assert output.tolist() == members and counts.tolist() == [1] * n
    handle = hvd.grouped_allreduce_async([torch.full((2,), float(rank))] * 2, op=hvd.Sum, process_set=mine)
    while not hvd.poll(handle):
        pass
    assert all(torch.equal(result, torch.full((2,), total)) for result in hvd.synchronize(handle))
    gathered, _ = hvd.grouped_allgather([torch.full((own,), rank), torch.ones(1)], process_set=mine)
    assert gathered.tolist() == [r for i, r in enumerate(members) for _ in range(i)]
    sparse = torch.full((2, 2), float(rank)).to_sparse()
    mean = hvd.sparse_allreduce_async(sparse, "s", hvd.Average, process_set=mine)()
    torch.testing.assert_close(mean.to_dense(), torch.full((2, 2), total / n))


def test_roots_are_ranks_in_the_world(rank, mine, sets):
    for root in mine.ranks:
        tensor = torch.full((5,), float(rank))
        assert torch.equal(hvd.broadcast(tensor, root, process_set=mine), torch.full((5,), float(root)))
        assert hvd.broadcast_object(f"of {rank}", root, process_set=mine) == f"of {root}"
        hvd.broadcast_parameters({"tensor": tensor}, root, process_set=mine)
        assert torch.equal(tensor, torch.full((5,), float(root)))
    for root in (*sets[1 - rank % 2].ranks, -1):
        with pytest.raises(ValueError, match=rf"broadcast received invalid root rank {root}: .* one of \[{rank % 2}"):
            hvd.broadcast(torch.ones(5), root, process_set=mine)


def test_gradients_stay_in_the_set(rank, mine):
    def leaf() -> torch.Tensor:
        return torch.full((2,), 2.0, requires_grad=True)

    weight = float(rank + 1)
    of_set = [r + 1.0 for r in mine.ranks]
    (tensor := leaf()), (hvd.allreduce(tensor, op=hvd.Sum, process_set=mine) * weight).sum().backward()
    assert tensor.grad.tolist() == [sum(of_set)] * 2
    (tensor := leaf()), (hvd.allgather(tensor, process_set=mine) * weight).sum().backward()
    assert tensor.grad.tolist() == pytest.approx([sum(of_set) / len(of_set)] * 2)
    root = mine.ranks[-1]
    (tensor := leaf()), (hvd.broadcast(tensor, root, process_set=mine) * weight).sum().backward()
    assert tensor.grad.tolist() == pytest.approx([sum(of_set) / len(of_set) if rank == root else 0.0] * 2)


def test_a_set_does_not_wait_for_another(rank, size):
    """Rank 0 is late in one set until rank 1 has finished in another, of which it tells over the world."""
    if size < 2:
        pytest.skip("two sets need two ranks")
    late, other = hvd.add_process_set([0, *range(2, size)]), hvd.add_process_set(range(1, size))
    waiting = None
    if rank >= 2:
        waiting = hvd.allreduce_async(torch.ones(50_000), name="late", op=hvd.Sum, process_set=late)
    if rank >= 1:
        for step in range(5):
            hvd.barrier(process_set=other)
            total = hvd.allreduce(torch.full((50_000,), float(step)), name="other", op=hvd.Sum, process_set=other)
            assert total[0] == step * (size - 1)
    if waiting is not None:
        assert not hvd.poll(waiting)
    hvd.broadcast(torch.ones(1), 1, name="rank 1 is through")
    hvd.barrier()
    if rank == 0:
        waiting = hvd.allreduce_async(torch.ones(50_000), name="late", op=hvd.Sum, process_set=late)
    if waiting is not None:
        assert hvd.synchronize(waiting)[0] == size - 1


# --- training ---------------------------------------------------------------------------------------------------------


def test_an_optimizer_of_a_set_steps_its_ranks_alike(rank, size, sets):
    """The others of the world make the same optimizer, and step with gradients of their own."""
    evens = sets[0]
    weight = torch.nn.Parameter(torch.zeros(300))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], process_set=evens)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * (rank + 1.0)).sum().backward()
        optimizer.step()
    expected = np.mean([r + 1.0 for r in evens.ranks]) if rank in evens.ranks else rank + 1.0
    torch.testing.assert_close(weight.detach(), torch.full((300,), -3.0 * float(expected)))


@pytest.mark.parametrize("codec", ["onebit", "powersgd(rank=2)", "dgc(ratio=0.1)"])
def test_a_set_has_codec_state_of_its_own(rank, size, mine, rng, codec):
    """Both sets and the world compress a tensor of one name; in each, what was not delivered is in its residuals."""
    shape, steps = (100, 120), 4
    gradients = rng.standard_normal((steps, size, *shape)).astype(np.float32)
    delivered = {}
    for step in range(steps):
        for where in (mine, hvd.global_process_set):
            own = torch.from_numpy(gradients[step, rank].copy())
            result = hvd.allreduce(own, op=hvd.Sum, name="w", compression=codec, process_set=where)
            delivered[where] = delivered.get(where, 0) + result
    for where in (mine, hvd.global_process_set):
        peers = hvd.allgather(delivered[where][None], process_set=where)
        assert all(torch.equal(peer, peers[0]) for peer in peers)
        states = default.session_of(where).codec_states
        kept = states.residual("allreduce.w") if "allreduce.w" in states.residual_names() else np.zeros(0, np.float32)
        if not kept.size:
            arrays = states.state("allreduce.w")["arrays"] if "allreduce.w" in states.state_names() else {}
            kept = next((array["values"] for array in arrays.values() if array["pending"]), np.zeros(shape, np.float32))
        pending = hvd.allreduce(torch.from_numpy(kept.reshape(shape).copy()), op=hvd.Sum, process_set=where)
        expected = torch.from_numpy(gradients[:, where.ranks].astype(np.float64).sum(axis=(0, 1)))
        torch.testing.assert_close((peers[0] + pending).double(), expected, rtol=1e-3, atol=1e-3)

"""join: a rank leaves a loop early, and the others go on with zeros in its place. Expected values are computed here."""

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync import default, terms

EVERY_KIND = ["allgather", "broadcast", "alltoall", "reducescatter"]


def call(kind: str, tensor: torch.Tensor) -> None:
    """An operation that has no name."""
    if kind == "broadcast":
        hvd.broadcast(tensor, 0)
    else:
        getattr(hvd, kind)(tensor)


def test_a_world_of_one_has_nobody_to_wait_for(size):
    if size > 1:
        pytest.skip("for a world of one")
    assert [hvd.join(), hvd.join(hvd.local_rank())] == [0, 0]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("numel", [5, 5000, 300_000])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_the_others_go_on_and_divide_by_all_ranks(rank, size, rng, dtype, numel, known):
    if size < 2:
        pytest.skip("one rank cannot leave another")
    for early in range(min(size, 2)):
        tensors = rng.integers(-99, 99, (2, size, numel))
        for name, op in (("a", hvd.Average), ("b", hvd.Sum), ("c", hvd.Sum)):
            if known:
                hvd.allreduce(torch.from_numpy(tensors[0, rank]).to(dtype), name=f"{early}{name}", op=op)
        if rank != early:
            handles = {
                name: hvd.allreduce_async(torch.from_numpy(tensors[1, rank]).to(dtype), name=f"{early}{name}", op=op)
                for name, op in (("a", hvd.Average), ("b", hvd.Sum))
            }
            total = np.delete(tensors[1], early, axis=0).sum(axis=0)
            mean = total / size if dtype.is_floating_point else np.trunc(total / size)
            for name, expected in (("a", mean), ("b", total)):
                result = hvd.synchronize(handles[name])
                torch.testing.assert_close(result, torch.from_numpy(expected).to(dtype), rtol=1e-6, atol=0)
        last = hvd.join(hvd.local_rank())
        assert last != early
        assert hvd.allgather_object(last) == [last] * size


def test_ranks_that_leave_one_after_the_other(rank, size):
    """Rank r has r + 1 tensors: the last one is the last to join, wherever the others are."""
    for turn in range(5):
        for step in range(rank + 1):
            present = range(step, size)
            result = hvd.allreduce(torch.full((1000,), float(rank + turn)), name=f"step {step}", op=hvd.Sum)
            assert result[0] == sum(r + turn for r in present)
        assert hvd.join() == size - 1


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_needs_every_rank_is_refused(rank, size, kind):
    if size < 2:
        pytest.skip("one rank cannot leave another")
    call(kind, torch.ones(size * 6))
    if rank > 0:
        for _ in range(2):
            with pytest.raises(hvd.HorovodInternalError) as caught:
                call(kind, torch.ones(size * 6))
            assert str(caught.value).startswith(f"{kind.capitalize()} is not supported with Join at this time.")
            assert "rank 0" in str(caught.value) and f"{kind}.noname" in str(caught.value)
        assert hvd.allreduce(torch.ones(3), name="goes on", op=hvd.Sum)[0] == size - 1
    hvd.join()
    # Unnamed operations meet again, though rank 0 has made fewer.
    call(kind, torch.ones(size * 6))
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum)[0] == size


def test_barriers_and_process_sets_go_on(rank, size):
    if size < 3:
        pytest.skip("a set without the rank that leaves needs three")
    hvd.shutdown()
    others = hvd.ProcessSet(range(1, size))
    hvd.init(process_sets=[others], timeout_s=20.0)
    if rank > 0:
        hvd.barrier()
        assert hvd.allgather(torch.ones(2), process_set=others).sum() == 2 * (size - 1)
    assert hvd.join() > 0


def test_a_rank_that_has_joined_submits_nothing(rank, size):
    if size < 2:
        pytest.skip("one rank has joined at once")
    owner = default.session()
    registration = terms.Terms("join", terms.OpKind.JOIN, "uint8", (0,)).register(owner)
    handle = owner.submit(registration, 0, 0, None)
    if rank == 0:
        with pytest.raises(ValueError, match="allreduce tensor allreduce.w on a rank that has joined"):
            hvd.allreduce(torch.ones(3), name="w")
    owner.synchronize_gather(handle)


@pytest.mark.parametrize("codec", [
    "fp16", "onebit", "terngrad(bits=2)", "dgc(ratio=0.1)", "powersgd(rank=2, start_step=0)",
])  # fmt: skip
@pytest.mark.parametrize("known", [False, True])
def test_what_a_codec_keeps_of_the_rank_stays(rank, size, rng, codec, known):
    """Bit for bit; and afterwards all ranks have the same results as before, so what they share is alike."""
    if size < 2:
        pytest.skip("one rank cannot leave another")
    gradients = rng.standard_normal((9, size, 100, 120)).astype(np.float32)

    def reduce(step: int) -> torch.Tensor:
        own = torch.from_numpy(gradients[step, rank].copy())
        return hvd.allreduce(own, name="w", op=hvd.Sum, compression=codec)

    def kept() -> dict[str, np.ndarray]:
        states = default.session().codec_states
        found = {"residual": states.residual("allreduce.w")} if "allreduce.w" in states.residual_names() else {}
        arrays = states.state("allreduce.w")["arrays"] if "allreduce.w" in states.state_names() else {}
        return found | {name: array["values"] for name, array in arrays.items() if not array["shared"]}

    for step in range(3 if known else 0):
        reduce(step)
    before = kept()
    if rank > 0:
        for step in range(3, 6):
            peers = reduce(step)
    hvd.join()
    if rank == 0:
        after = kept()
        assert all(np.array_equal(after[name], before[name]) for name in before)
        assert not any(values.any() for name, values in after.items() if name not in before)
    for step in range(6, 9):
        peers = hvd.allgather(reduce(step)[None])
        assert all(torch.equal(peer, peers[0]) for peer in peers)


def test_names_after_a_join_are_not_those_of_abandoned_operations(rank, size):
    hvd.allgather_async(torch.ones(3))
    hvd.barrier()
    if rank > 0:
        hvd.allreduce(torch.ones(2))
    hvd.join()
    assert hvd.allgather(torch.full((1,), float(rank))).tolist() == list(range(size))
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum)[0] == size


def test_a_training_loop_of_uneven_length(rank, size):
    """Rank r has 3 + r batches. A gradient that a rank does not have counts as zero."""
    weight = torch.nn.Parameter(torch.zeros(5000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    expected = 0.0
    for batch in range(3 + rank):
        optimizer.zero_grad()
        (weight * (rank + 1.0)).sum().backward()
        optimizer.step()
        expected -= sum(r + 1.0 for r in range(size) if batch < 3 + r) / size
        torch.testing.assert_close(weight.detach(), torch.full((5000,), expected))
    last = hvd.join()
    assert last == size - 1
    hvd.broadcast_parameters({"weight": weight.detach()}, last)
    everyone = hvd.allgather(weight.detach()[None])
    assert all(torch.equal(one, everyone[0]) for one in everyone)

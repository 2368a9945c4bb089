"""join: a rank leaves a loop early, and the others go on with zeros in its place. Expected values are computed here."""

import numpy as np
import pytest

from casync.session import default
from casync.tensors import signature as terms
from support.arrays import FLOATS, normal

EVERY_KIND = ["allgather", "broadcast", "alltoall", "reducescatter"]


@pytest.fixture
def call(hvd):
    def submit(kind, tensor):
        """An operation that has no name."""
        return hvd.broadcast(tensor, 0) if kind == "broadcast" else getattr(hvd, kind)(tensor)

    return submit


def test_a_world_of_one_has_nobody_to_wait_for(hvd, size):
    if size > 1:
        pytest.skip("for a world of one")
    assert [hvd.join(), hvd.join(hvd.local_rank())] == [0, 0]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("numel", [5, 5000, 300_000])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_the_others_go_on_and_divide_by_all_ranks(adaptor, hvd, rank, size, rng, dtype, numel, known):
    for early in range(min(size, 2)):
        arrays = rng.integers(-99, 99, (2, size, numel))
        first, then = (adaptor.tensor(arrays[turn, rank].astype(dtype)) for turn in (0, 1))
        for name, op in (("a", hvd.Average), ("b", hvd.Sum), ("c", hvd.Sum)):
            if known:
                hvd.allreduce(first, name=f"{early}{name}", op=op)
        if rank != early:
            handles = {
                name: hvd.allreduce_async(then, name=f"{early}{name}", op=op)
                for name, op in (("a", hvd.Average), ("b", hvd.Sum))
            }
            total = np.delete(arrays[1], early, axis=0).sum(axis=0)
            mean = total / size if dtype in FLOATS else np.trunc(total / size)
            for name, expected in (("a", mean), ("b", total)):
                result = hvd.synchronize(handles[name])
                adaptor.assert_close(result, expected.astype(dtype), dtype, rtol=1e-6)
        last = hvd.join(hvd.local_rank())
        assert last != early
        assert hvd.allgather_object(last) == [last] * size


def test_ranks_that_leave_one_after_the_other(adaptor, hvd, rank, size):
    """Rank r has r + 1 tensors: the last one is the last to join, wherever the others are."""
    for turn in range(5):
        for step in range(rank + 1):
            present = range(step, size)
            result = hvd.allreduce(adaptor.full(1000, rank + turn), name=f"step {step}", op=hvd.Sum)
            adaptor.assert_filled(result, 1000, sum(r + turn for r in present))
        assert hvd.join() == size - 1


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_needs_every_rank_is_refused(adaptor, hvd, call, rank, size, kind):
    call(kind, adaptor.ones(size * 6))
    if rank > 0:
        for _ in range(2):
            with pytest.raises(hvd.HorovodInternalError) as caught:
                call(kind, adaptor.ones(size * 6))
            assert str(caught.value).startswith(f"{kind.capitalize()} is not supported with Join at this time.")
            assert "rank 0" in str(caught.value) and f"{kind}.noname" in str(caught.value)
        adaptor.assert_filled(hvd.allreduce(adaptor.ones(3), name="goes on", op=hvd.Sum), 3, size - 1)
    hvd.join()
    # Unnamed operations meet again, though rank 0 has made fewer.
    call(kind, adaptor.ones(size * 6))
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(3), op=hvd.Sum), 3, size)


def test_barriers_and_process_sets_go_on(adaptor, hvd, rank, size):
    if size < 3:
        pytest.skip("a set without the rank that leaves needs three")
    hvd.shutdown()
    others = hvd.ProcessSet(range(1, size))
    hvd.init(process_sets=[others], timeout_s=20.0)
    if rank > 0:
        hvd.barrier()
        adaptor.assert_filled(hvd.allgather(adaptor.ones(2), process_set=others), 2 * (size - 1), 1)
    assert hvd.join() > 0


@pytest.mark.usefixtures("several")
def test_a_rank_that_has_joined_submits_nothing(adaptor, hvd, rank):
    owner = default.session()
    registration = owner.register(terms.OpSignature("join", terms.OpKind.JOIN, "uint8", (0,)))
    handle = owner.submit(registration, 0, 0, None)
    if rank == 0:
        with pytest.raises(ValueError, match="allreduce tensor allreduce.w on a rank that has joined"):
            hvd.allreduce(adaptor.ones(3), name="w")
    owner.synchronize_gather(handle)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("codec", [
    "fp16", "onebit", "terngrad(bits=2)", "dgc(ratio=0.1)", "powersgd(rank=2, start_step=0)",
])  # fmt: skip
@pytest.mark.parametrize("known", [False, True])
def test_what_a_codec_keeps_of_the_rank_stays(adaptor, hvd, rank, size, rng, codec, known):
    """Bit for bit; and afterwards all ranks have the same results as before, so what they share is alike."""
    gradients = [normal(rng, (100, 120), "float32", size) for _ in range(9)]

    def reduce(step):
        return hvd.allreduce(adaptor.tensor(gradients[step][rank]), name="w", op=hvd.Sum, compression=codec)

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
            reduce(step)
    hvd.join()
    if rank == 0:
        after = kept()
        assert all(np.array_equal(after[name], before[name]) for name in before)
        assert not any(values.any() for name, values in after.items() if name not in before)
    for step in range(6, 9):
        adaptor.assert_same_bits_everywhere(reduce(step))


def test_names_after_a_join_are_not_those_of_abandoned_operations(adaptor, hvd, rank, size):
    hvd.allgather_async(adaptor.ones(3))
    hvd.barrier()
    if rank > 0:
        hvd.allreduce(adaptor.ones(2))
    hvd.join()
    adaptor.assert_equal(hvd.allgather(adaptor.full(1, rank)), np.arange(size, dtype=np.float32))
    adaptor.assert_filled(hvd.allreduce(adaptor.ones(2), op=hvd.Sum), 2, size)


def test_groups_go_on_too(adaptor, hvd, rank, size):
    """Of Horovod's operations on lists, grouped_allreduce has zeros of who has left as well."""
    if rank > 0:
        first, second = hvd.grouped_allreduce([adaptor.ones(3), adaptor.ones(7000, "int32")], op=hvd.Sum, name="g")
        adaptor.assert_filled(first, 3, size - 1)
        adaptor.assert_filled(second, 7000, size - 1, "int32")
    assert hvd.join() > 0 or size == 1

"""barrier: who waits for whom, and for how long."""

import gc
import time

import pytest


def test_barrier_does_not_wait_for_outstanding_operations(adaptor, hvd, rank):
    """Rank 0 submits late, so the others' allreduce is outstanding while they all meet."""
    handle = None if rank == 0 else hvd.allreduce_async(adaptor.ones(10), name="late")
    hvd.barrier()
    if handle is None:
        handle = hvd.allreduce_async(adaptor.ones(10), name="late")
    adaptor.assert_filled(hvd.synchronize(handle), 10, 1)


def test_barrier_waits_for_everybody(hvd, rank, size):
    hvd.barrier()
    start = time.monotonic()
    if rank == size - 1:
        time.sleep(0.3)
    hvd.barrier()
    assert time.monotonic() - start >= 0.29


@pytest.mark.usefixtures("several")
def test_the_barrier_of_a_set_waits_for_its_ranks_alone(hvd, rank, size):
    """Horovod's test with shorter times: rank 0 keeps the even ranks waiting, and not the odd ones."""
    hvd.shutdown()
    sets = [hvd.ProcessSet(range(first, size, 2)) for first in (0, 1)]
    hvd.init(process_sets=sets, timeout_s=20.0, stall_warning_s=10.0)
    hvd.barrier()
    start = time.monotonic()
    if rank == 0:
        time.sleep(1.5)
    hvd.barrier(process_set=sets[rank % 2])
    waited = time.monotonic() - start
    assert waited >= 1.4 if rank % 2 == 0 else waited < 1


@pytest.mark.parametrize("codec", ["none", "onebit"])
def test_an_abandoned_operation_keeps_its_memory_and_holds_nobody_up(adaptor, hvd, codec):
    """As after a name that was given twice, where nobody synchronises the first, and its tensor is gone."""
    tensor = adaptor.ones(3_000_000)
    there = adaptor.memory(tensor)
    hvd.allreduce_async(tensor, name="abandoned", compression=codec)
    with pytest.raises(ValueError, match="same name"):
        hvd.allreduce_async(tensor, name="abandoned", compression=codec)
    del tensor
    gc.collect()
    hvd.barrier()
    assert there()
    hvd.barrier()  # or the first to go on would end what others look at
    hvd.shutdown()
    gc.collect()
    assert not there()

"""Who the ranks are, sessions that are opened and closed, and what is known of what they did."""

import os
import threading

import pytest

from support.ranks import LIMITS


def test_ranks(hvd, rank, size):
    assert (hvd.rank(), hvd.size()) == (rank, size)
    assert hvd.allgather_object((rank, size)) == [(r, size) for r in range(size)]
    assert 0 <= hvd.local_rank() < hvd.local_size() and 0 <= hvd.cross_rank() < hvd.cross_size()
    assert hvd.is_initialized() and hvd.is_homogeneous()


def test_ranks_are_those_of_the_launcher(hvd):
    """Which says it under Horovod's names as well."""
    for who in ("CASYNC", "HOROVOD"):
        told = [int(os.environ[f"{who}_{name}"]) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        assert told == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


def test_what_was_built(hvd, size):
    by_mpi = size > 1 and os.environ.get("CASYNC_TRANSPORT") != "tcp"
    assert hvd.mpi_built() is True and hvd.mpi_enabled() is by_mpi and hvd.mpi_threads_supported() is by_mpi
    assert hvd.gloo_built() is False and hvd.gloo_enabled() is False
    assert all(type(getattr(hvd, f"{name}_built")()) is bool for name in ("ddl", "ccl", "rocm"))
    assert hvd.cuda_built() is True
    assert type(hvd.nccl_built()) is int


def test_twenty_cycles(adaptor, hvd):
    threads = threading.active_count()
    for cycle in range(20):
        hvd.shutdown()
        hvd.shutdown()  # does nothing
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
            hvd.rank()
        with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
            hvd.allreduce(adaptor.ones(3))
        hvd.init(**LIMITS)
        hvd.init()  # does nothing
        adaptor.assert_filled(hvd.allreduce(adaptor.full(3000, cycle)), 3000, cycle)
    assert threading.active_count() == threads


@pytest.mark.interplay("submits from several threads", "all", "supported", "each name by one thread at a time")
def test_submit_from_several_threads(adaptor, hvd, rank, size):
    failures = []

    def work(which: int) -> None:
        try:
            for step in range(20):
                mine = adaptor.full(500 * which + 1, rank + step)
                result = hvd.allreduce(mine, name=f"thread{which}", op=hvd.Sum)
                adaptor.assert_filled(result, 500 * which + 1, sum(range(size)) + step * size)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_counters_count_what_is_sent(adaptor, hvd, size):
    before = hvd.counters()
    hvd.allreduce(adaptor.ones(250_000), topology="ps", op=hvd.Sum)
    after = hvd.counters()
    hvd.barrier()
    sent = sum(hvd.allgather_object(after["sent_bytes"] - before["sent_bytes"]))
    # Each of N ranks sends the others' partitions and returns its own: 2 (N-1) / N of the gradient.
    payload = 2 * (size - 1) * 1_000_000
    assert payload <= sent <= 1.02 * payload + 4096 * size * size


@pytest.mark.usefixtures("several")
def test_the_plan_of_a_gradient_is_known_after_use(adaptor, hvd):
    hvd.allreduce(adaptor.ones(100_000), name="planned", compression="onebit", topology="ps")
    plan = hvd.plans()["allreduce.planned"]
    assert plan.codec == "onebit" and plan.topology == "ps" and plan.partitions >= 1

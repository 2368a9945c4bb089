"""covap: a tensor goes in one of several steps, and what it was in the others comes with it."""

import pytest


@pytest.mark.parametrize("codec", ["none", "fp16", "onebit"])
def test_a_tensor_goes_in_one_of_several_steps(adaptor, hvd, rank, size, codec):
    waiting = dict.fromkeys(("a", "b", "c", "d"), 0.0)
    for step in range(7):
        for name in waiting:
            given = adaptor.full(9000, step + 2.0 * rank)
            result = hvd.allreduce(given, name=name, compression=f"covap({codec}, interval=3)")
            waiting[name] += step + size - 1.0  # the mean over the ranks
            period, offset = 1, 0
            if size > 1:
                plan = hvd.plans()[f"allreduce.{name}"]
                period, offset = plan.period, plan.offset
            expected = waiting[name] if step % period == offset else 0.0
            adaptor.assert_filled(result, 9000, expected)
            waiting[name] -= expected
    if size > 1:
        assert [hvd.plans()[f"allreduce.{name}"].offset for name in waiting] == [0, 1, 2, 0]


def test_a_tensor_without_a_name_is_refused(adaptor, hvd):
    if adaptor.in_graph:
        pytest.skip("an operation of a graph has a name of its own, the same in each run of it")
    with pytest.raises(hvd.InvalidArgumentError, match="give it as name="):
        hvd.allreduce(adaptor.ones(9000), compression="covap(none, interval=2)")

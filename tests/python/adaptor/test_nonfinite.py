"""What is said of results that are not finite: which tensor, in which step, and whose gradient it was."""

import logging
import re
import time

import numpy as np
import pytest

from support.arrays import Array, full

NUMEL = 6000
TEXT = re.compile(r"tensor allreduce\.(\S+) holds NaN or Inf in step (\d+)(?:, from ranks? ([\d, ]+))?")


@pytest.fixture
def said(adaptor, hvd, caplog):
    """What all ranks have logged so far: (tensor, step, ranks named), sorted."""

    def collect() -> list[tuple[str, int, tuple[int, ...]]]:
        if adaptor.in_graph or not adaptor.blocks:
            time.sleep(0.2)  # the operation is over before what it has to say was told to Python
        texts = [record.getMessage() for record in caplog.records if "NaN or Inf" in record.getMessage()]
        found = []
        for text in texts:
            found_in = TEXT.match(text)
            assert found_in is not None, text
            name, step, ranks = found_in.groups()
            named = tuple(int(rank) for rank in re.findall(r"\d+", ranks or ""))
            assert named or "the log of another rank says whose gradient it was" in text
            found.append((name, int(step), named))
        return sorted(sum(hvd.allgather_object(found), []))

    with caplog.at_level(logging.WARNING, logger="casync"):
        yield collect


def gradient_of(rank: int, bad: tuple[int, ...], numel: int = NUMEL) -> Array:
    gradient = np.random.default_rng(rank).standard_normal(numel, np.float32)
    if rank in bad:
        gradient[:: max(numel // 7, 1)] = np.inf if rank % 2 else np.nan
    return gradient


def name_of(bad: tuple[int, ...]) -> str:
    return f"g{bad}".replace(" ", "")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("topology", ["direct", "ps", "ring", "two_level"])
@pytest.mark.parametrize(
    "codec", ["none", "fp16", "onebit", "always(graddrop(drop=0.9))", "always(powersgd(rank=2, start_step=1))"]
)
def test_every_rank_at_fault_is_named_and_no_other(adaptor, hvd, codec, topology, in_place, rank, size, said):
    if in_place and not adaptor.in_place:
        pytest.skip(f"the values of tensors of {adaptor.name} do not change")
    reduce = hvd.allreduce_ if in_place else hvd.allreduce
    at_fault = ((size - 1,), (0,), (0, size - 1))
    for bad in at_fault:
        for step in (1, 2, 3):
            gradient = adaptor.tensor(gradient_of(rank, bad if step == 2 else ()).reshape(60, 100))
            reduce(gradient, name=name_of(bad), compression=codec, topology=topology)
    told = said()
    for bad in at_fault:
        assert {step for tensor, step, _ in told if tensor == name_of(bad)} == {2}
        named = set().union(*(ranks for tensor, _, ranks in told if tensor == name_of(bad)))
        # In place the owner of a sum has no contribution of its own left to look at, if another is at fault as well.
        assert named == set(bad) or (in_place and len(bad) > 1 and named and named < set(bad))


@pytest.mark.parametrize("numel", [1, 1000, 100_000])
def test_small_and_large_ones(adaptor, hvd, numel, rank, size, said):
    reduce = hvd.allreduce_ if adaptor.in_place else hvd.allreduce
    reduce(adaptor.tensor(gradient_of(rank, (size - 1,), numel)), name="x")
    told = said()
    assert {ranks for *_, ranks in told} - {()} == {(size - 1,)}
    assert {(name, step) for name, step, _ in told} == {("x", 1)}


@pytest.mark.usefixtures("several")
def test_a_sum_beyond_float16_is_not_blamed_on_a_rank_alone(adaptor, hvd, caplog):
    with caplog.at_level(logging.WARNING, logger="casync"):
        hvd.allreduce(adaptor.full(10, 60_000, "float16"), op=hvd.Sum, name="x")
        while not caplog.records:  # it may be over before what it has to say was told to Python
            time.sleep(0.01)
    (text,) = [record.getMessage() for record in caplog.records]
    assert "because the sum is beyond float16" in text or "another rank" in text


def test_an_optimizer_that_goes_on_is_told_of_now_and_then(adaptor, hvd, rank, size, caplog):
    """20 tensors in each of 40 steps are a few lines."""
    submit = hvd.allreduce_async_ if adaptor.in_place else hvd.allreduce_async
    with caplog.at_level(logging.WARNING, logger="casync"):
        for _ in range(40):
            handles = [submit(adaptor.full(3, np.nan), name=f"t{i}") for i in range(20)]
            for handle in handles:
                hvd.synchronize(handle)
    texts = [record.getMessage() for record in caplog.records]
    steps = [int(TEXT.match(text)[2]) for text in texts]
    assert set(steps) <= {*range(1, 9), 16, 32} and len(texts) <= 4 * 10
    if size < 2 or rank == 0:
        assert {1, 8, 16} <= set(steps)
        assert "other tensors of this step are not named" in texts[3]


def test_what_is_finite_is_not_told_of(adaptor, hvd, size, said):
    hvd.allreduce(adaptor.tensor(full(NUMEL, 3e38) / np.float32(size)), op=hvd.Sum)
    hvd.allreduce(adaptor.tensor(np.array([2**40])))
    assert said() == []

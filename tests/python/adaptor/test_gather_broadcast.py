"""allgather and broadcast."""

import numpy as np
import pytest

from support.arrays import DTYPES, full


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_of_uneven_first_dimensions(adaptor, hvd, dtype, rank, size):
    for step in range(3):  # rows change from call to call, under one name
        rows = [(r + step) % 4 for r in range(size)]
        result = hvd.allgather(adaptor.full((rows[rank], 3, 2), rank % 2, dtype), name="g")
        adaptor.assert_equal(result, np.concatenate([full((n, 3, 2), r % 2, dtype) for r, n in enumerate(rows)]))


def test_allgather_of_nothing(adaptor, hvd, size):
    adaptor.assert_filled(hvd.allgather(adaptor.ones((0, 5))), (0, 5), 0)
    adaptor.assert_filled(hvd.allgather(adaptor.ones((2, 0))), (2 * size, 0), 0)


def test_allgather_of_large_and_not_contiguous(adaptor, hvd, rank, size):
    base = np.arange(400_000, dtype=np.float32).reshape(2, 200_000).T
    result = hvd.synchronize(hvd.allgather_async(adaptor.turned(base + np.float32(rank))))
    adaptor.assert_equal(result, np.concatenate([base + np.float32(r) for r in range(size)]))
    if adaptor.in_place:
        result[0, 0] = 5  # an ordinary tensor
        assert adaptor.array(result)[0, 0] == 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_every_root(adaptor, hvd, dtype, rank, size):
    for root in range(size):
        for shape in [(), (0,), (7,), (50, 40)]:
            mine = adaptor.full(shape, rank % 2, dtype)
            adaptor.assert_filled(hvd.broadcast(mine, root, name=f"{root}{shape}"), shape, root % 2, dtype)
            adaptor.assert_filled(mine, shape, rank % 2, dtype)  # the input must not change


@pytest.mark.usefixtures("in_place_forms")
def test_broadcast_in_place(adaptor, hvd, rank, size):
    tensor = adaptor.full((3, 100_000), rank)
    assert hvd.broadcast_(tensor, size - 1) is tensor
    adaptor.assert_filled(tensor, (3, 100_000), size - 1)
    view, between = adaptor.gapped(full((3, 4), rank))
    assert hvd.synchronize(hvd.broadcast_async_(view, 0)) is view
    adaptor.assert_filled(view, (3, 4), 0)
    adaptor.assert_filled(between, (3, 4), rank)


def test_broadcast_async_leaves_its_input(adaptor, hvd, rank, size):
    mine = [adaptor.full((i + 1, 3), rank) for i in range(10)]
    handles = [hvd.broadcast_async(tensor, size - 1) for tensor in mine]
    for i, handle in enumerate(handles):
        adaptor.assert_filled(hvd.synchronize(handle), (i + 1, 3), size - 1)
        assert hvd.synchronize(handle) is None
        adaptor.assert_filled(mine[i], (i + 1, 3), rank)


@pytest.mark.parametrize("root", [-1, 99])
def test_a_root_that_is_no_rank_is_refused(adaptor, hvd, root):
    for call in (hvd.broadcast, hvd.broadcast_async):
        with pytest.raises(ValueError, match=f"broadcast received invalid root rank {root}"):
            call(adaptor.ones(3), root)


def test_what_has_no_rows_is_refused(adaptor, hvd):
    """Gathering is along the first dimension, of which a single number has none."""
    for call in (hvd.allgather, hvd.allgather_async):
        with pytest.raises(ValueError, match="rank-zero"):
            call(adaptor.ones(()))

"""broadcast_object and allgather_object: anything that can be pickled."""

import numpy as np
import pytest


def test_objects_of_all_ranks(adaptor, hvd, rank, size):
    own = {"rank": rank, "text": "x" * (10 * rank), "tensor": adaptor.full(rank, rank)}
    everything = hvd.allgather_object(own)
    assert [item["rank"] for item in everything] == list(range(size))
    assert [len(item["text"]) for item in everything] == [10 * r for r in range(size)]
    for r, item in enumerate(everything):
        adaptor.assert_filled(item["tensor"], r, r)


def test_an_object_of_every_root(hvd, rank, size):
    for root in range(size):
        sent = hvd.broadcast_object([root, lambda value=root: value] if rank == root else None, root_rank=root)
        assert sent[0] == root and sent[1]() == root
    assert hvd.broadcast_object(b"y" * 1_000_000 if rank == 0 else None) == b"y" * 1_000_000


def test_objects_under_one_name_may_change(hvd, rank, size):
    for step in range(4):
        assert hvd.broadcast_object("z" * (step * 100 + rank), size - 1, name="o") == "z" * (step * 100 + size - 1)
        everything = hvd.allgather_object(list(range(rank * step)), name="all")
        assert everything == [list(range(r * step)) for r in range(size)]


@pytest.mark.parametrize("value", [None, 0, "", b"", [], {}, ("a", 1.5), float("inf")], ids=repr)
def test_small_objects_come_back_as_they_were(hvd, rank, size, value):
    assert hvd.broadcast_object(value if rank == 0 else "of another rank") == value
    assert hvd.allgather_object(value) == [value] * size


def test_arrays_in_objects_keep_their_dtype(hvd, rank, size):
    own = np.arange(rank + 1, dtype=np.uint8)
    for r, array in enumerate(hvd.allgather_object({"array": own})):
        assert array["array"].dtype == np.uint8 and array["array"].tolist() == list(range(r + 1))

"""Sparse tensors, and embeddings with sparse gradients under the optimizer."""

import casync.torch as hvd
import pytest
import torch

from casync.session import default
from support.replicas import assert_same_everywhere


def sparse_of(rank, dtype=torch.float32):
    """Rank r has rows r and r + 1 of ten."""
    values = torch.full((2, 3), rank + 1.0)
    return torch.sparse_coo_tensor([[rank, rank + 1]], values, (10, 3), dtype=dtype, check_invariants=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_sum_and_average(dtype, rank, size):
    total = sum(sparse_of(r, torch.float64).to_dense() for r in range(size))
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        wait = hvd.sparse_allreduce_async(sparse_of(rank, dtype), name=f"sparse{op}", op=op)
        result = wait()
        assert result.is_sparse and result.dtype == dtype and result.shape == (10, 3)
        torch.testing.assert_close(result.to_dense().double(), total / divisor, rtol=1e-3, atol=0)
        assert wait() is result


def test_a_rank_without_elements(rank, size):
    mine = sparse_of(0) if rank == size - 1 else torch.sparse_coo_tensor(
        torch.empty((1, 0), dtype=torch.int64), torch.empty((0, 3)), (10, 3), check_invariants=True
    )  # fmt: skip
    assert torch.equal(hvd.sparse_allreduce_async(mine, "one", hvd.Sum)().to_dense(), sparse_of(0).to_dense())


def test_several_at_once_and_two_sparse_dimensions(rank, size):
    tensors = [torch.eye(4 + i).to_sparse() * (rank + 1) for i in range(5)]
    waits = [hvd.sparse_allreduce_async(tensor, f"s{i}", hvd.Sum) for i, tensor in enumerate(tensors)]
    for i, wait in reversed(list(enumerate(waits))):
        assert torch.equal(wait().to_dense(), torch.eye(4 + i) * sum(range(1, size + 1)))


def test_what_is_refused():
    with pytest.raises(ValueError, match="sparse COO"):
        hvd.sparse_allreduce_async(torch.ones(3), "dense", hvd.Sum)
    with pytest.raises(hvd.NotAvailableError, match="Sum or Average"):
        hvd.sparse_allreduce_async(sparse_of(0), "max", hvd.Max)


# --- embeddings -------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


def trained(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        if len(batch) > 0:
            model(torch.tensor(batch)).pow(2).sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.interplay(
    "sparse embeddings",
    "DistributedOptimizer",
    "supported",
    "uncompressed or in 16 bits; `sparse_as_dense=True` with any codec",
)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_an_embedding_trains_as_on_all_batches(make, sparse_as_dense, compression, rank, size):
    """Against one process that sees every rank's batch, with the mean of the gradients. Ranks look at other rows, in
    the third step at none.
    """
    batches = [[[r, r + 1, 7], [r], [] if r == 0 and size > 1 else [2, 2]] for r in range(size)]

    def model_of():
        torch.manual_seed(3)
        return torch.nn.Embedding(10, 4, sparse=True)

    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        make(list(model.parameters())), model.named_parameters(), compression, sparse_as_dense=sparse_as_dense
    )
    (weight,) = trained(model, optimizer, batches[rank])
    assert model.weight.grad.is_sparse
    reference = model_of()
    step = make(list(reference.parameters()))
    for i in range(3):
        step.zero_grad()
        sum(reference(torch.tensor(batches[r][i])).pow(2).sum() for r in range(size) if batches[r][i]).backward()
        reference.weight.grad = (reference.weight.grad / size).coalesce()
        step.step()
    tolerance = 1e-5 if compression is hvd.Compression.none else 2e-2
    torch.testing.assert_close(weight, reference.weight.detach(), rtol=tolerance, atol=tolerance)
    assert_same_everywhere(weight)


@pytest.mark.interplay(
    "sparse embeddings",
    "DistributedOptimizer",
    "supported",
    "uncompressed or in 16 bits; `sparse_as_dense=True` with any codec",
)
def test_embedding_beside_dense_layers_and_passes(rank, size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=2
    )
    for step in range(3):
        for _ in range(2):
            model(torch.tensor([rank, step])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    states = hvd.allgather_object([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for state in states for a, b in zip(state, states[0], strict=True))


@pytest.mark.interplay("sparse embeddings", "DistributedOptimizer", "refused", "other codecs without `sparse_as_dense`")
def test_a_codec_that_cannot_be_obeyed_is_refused(rank, size):
    if size < 2:
        pytest.skip("a world of one compresses nothing")
    model = torch.nn.Embedding(100, 100, sparse=True)

    def wrapped(sparse_as_dense):
        return hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), "onebit",
            sparse_as_dense=sparse_as_dense,
        )  # fmt: skip

    refusing = wrapped(False)
    with pytest.raises(hvd.NotAvailableError, match="weight is a sparse gradient, which onebit .*sparse_as_dense"):
        model(torch.tensor([1])).sum().backward()
    del refusing
    model = torch.nn.Embedding(100, 100, sparse=True)
    obeying = wrapped(True)
    model(torch.tensor([1])).sum().backward()
    obeying.step()


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("what", ["indices", "values", "both"])
def test_after_ranks_have_disagreed_the_names_can_be_used_again(rank, what):
    def table(dims=1, dtype=torch.float32):
        values = torch.ones((3, 4) if dims == 1 else 3, dtype=dtype)
        return torch.sparse_coo_tensor(torch.zeros((dims, 3), dtype=torch.int64), values, (5, 4))

    for _ in range(2):
        assert hvd.sparse_allreduce_async(table(), name="table", op=hvd.Sum)().to_dense()[0, 0] == 3 * hvd.size()
        dims = 2 if rank and what != "values" else 1
        wrong = table(dims, torch.float64 if rank and what != "indices" else torch.float32)
        handle = hvd.sparse_allreduce_async(wrong, name="table", op=hvd.Sum)
        for _ in range(2):
            with pytest.raises(hvd.MismatchError, match="table"):
                handle()
        assert not default.session().has_outstanding

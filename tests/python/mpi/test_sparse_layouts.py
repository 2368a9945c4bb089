"""Ranks whose gradients of one parameter are not alike: sparse here, dense there, or not there at all."""

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.replicas import assert_same_everywhere

MAKES = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
}
PLANS = {  # by step and rank, the rows that are looked up
    "unused at first on one rank": [[[1, 2], []], [[3], []], [[1], [4, 1]], [[], [2]], [[5], [5]]],
    "in turn": [[[], [3]], [[1], []], [[], [1]], [[2], []]],
    "unused at first everywhere": [[[], []], [[], [4]], [[1], []], [[], []]],
}


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Embedding(6, 4, sparse=True)
        self.second = nn.Parameter(torch.randn(6, 3))

    def forward(self, rows):
        rows = torch.tensor(rows, dtype=torch.int64)
        return self.first(rows).pow(2).sum() + F.embedding(rows, self.second, sparse=True).pow(3).sum()


def rows_of(of_ranks, rank):
    return of_ranks[rank % 2]


@pytest.mark.interplay(
    "sparse embeddings", "DistributedOptimizer", "supported", "also where a rank has not used one yet"
)
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("terms", [{}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}], ids=str)
def test_a_table_that_some_ranks_have_not_used_yet(terms, plan, make, rank, size):
    """Against one process that sees every rank's rows."""
    if make is MAKES["momentum"] and "sparse_as_dense" in terms:
        pytest.skip("torch's momentum is another for sparse gradients than for dense ones")
    model, plain = Tables(), Tables()
    optimizer = hvd.DistributedOptimizer(make(list(model.parameters())), model.named_parameters(), **terms)
    reference = make(list(plain.parameters()))
    for of_ranks in plan:
        optimizer.zero_grad()
        if rows_of(of_ranks, rank):
            model(rows_of(of_ranks, rank)).backward()
        optimizer.step()
        reference.zero_grad()
        if size == 1 and not rows_of(of_ranks, 0):
            continue  # nobody else had a gradient either: the optimizer's step has nothing to do
        sum(plain(rows_of(of_ranks, r)) for r in range(size)).backward()
        for parameter in plain.parameters():
            parameter.grad = (parameter.grad / size).coalesce()
        reference.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert_same_everywhere(ours.detach())


@pytest.mark.parametrize("predivide", [1.0, 2.0])
def test_a_tied_table_that_is_sparse_here_and_dense_there(predivide, rank, size):
    """Where the tied layer is used, too, torch has a dense gradient."""
    torch.manual_seed(0)
    models = [nn.Embedding(6, 4, sparse=True) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    model, plain = models
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_predivide_factor=predivide
    )
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)

    def loss(of, r, step):
        found = of(torch.tensor([r, step])).pow(2).sum()
        return found + of.weight.pow(3).sum() if (r + step) % 2 else found

    for step in range(4):
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
        reference.zero_grad()
        (sum(loss(plain, r, step) for r in range(size)) / size).backward()
        reference.step()
    torch.testing.assert_close(model.weight, plain.weight, rtol=1e-4, atol=1e-5)
    assert_same_everywhere(model.weight.detach())


def test_what_ranks_disagree_about_otherwise_is_an_error_as_ever(rank, size):
    if size < 2:
        pytest.skip("one rank cannot disagree")
    table = nn.Embedding(6 + (rank == 0), 4, sparse=True)
    other = nn.Linear(3, 2 + (rank == 0))
    model = nn.ModuleList([table, other])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(2):
        (table(torch.tensor([1])).sum() + other(torch.ones(1, 3)).sum()).backward()
        with pytest.raises(hvd.MismatchError, match=r"1\.(weight|bias)"):
            optimizer.step()
        optimizer.zero_grad()

"""dgc takes over SGD's momentum: what reaches the parameters, compressed or not, and who is refused."""

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync.errors import InvalidArgumentError
from support.replicas import assert_same_everywhere

SIZE, STEPS = 5000, 6


def gradients(rank: int) -> np.ndarray:
    return np.random.default_rng(100 + rank).standard_normal((STEPS, SIZE)).astype(np.float32)


def train(rank: int, compression: str, numel: int = SIZE, nesterov: bool = True) -> tuple[torch.Tensor, object]:
    """A parameter whose gradient in each step is given, after all steps at a learning rate of 1."""
    parameter = torch.nn.Parameter(torch.zeros(numel))
    sgd = torch.optim.SGD([parameter], lr=1.0, momentum=0.9, nesterov=nesterov)
    optimizer = hvd.DistributedOptimizer(sgd, [("p", parameter)], compression=compression)
    for row in gradients(rank):
        optimizer.zero_grad()
        (parameter * torch.from_numpy(row[:numel])).sum().backward()
        optimizer.step()
    return parameter.detach().clone(), optimizer


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_goes_uncompressed_is_as_with_sgds_own_momentum(rank, size, nesterov):
    """Below min_numel: the mean gradient, then SGD's momentum."""
    ours, _ = train(rank, "dgc", numel=1000, nesterov=nesterov)
    plain, _ = train(rank, "none", numel=1000, nesterov=nesterov)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_is_sent_and_what_is_kept_is_all_that_came_in(rank, size, nesterov):
    """Lin et al., section 3.2: what reached the parameters and what waits in v is the sum of what was added to v."""
    if size < 2:
        pytest.skip("in a world of one nothing is compressed")
    ours, optimizer = train(rank, "dgc(ratio=0.05)", nesterov=nesterov)
    state = optimizer.state_dict()["casync"]["states"]["p"]["arrays"]
    v = state["v"]["values"].numpy().astype(np.float64)
    waiting = sum(row.numpy() for row in hvd.allgather(torch.from_numpy(v).reshape(1, -1)))
    sent = -ours.numpy().astype(np.float64) * size
    mine = torch.from_numpy(reference(rank, nesterov)).reshape(1, -1)
    added = sum(row.numpy() for row in hvd.allgather(mine))
    never = ours.numpy() == 0  # elements that nobody sent have their whole velocity
    assert 0 < never.sum() < SIZE, "some were sent, some were not"
    np.testing.assert_allclose((sent + waiting)[never], added[never], rtol=1e-5, atol=1e-5)
    assert_same_everywhere(ours)


def reference(rank: int, nesterov: bool) -> np.ndarray:
    """v in float64 where nothing is ever sent."""
    u, v = np.zeros(SIZE), np.zeros(SIZE)
    for g in gradients(rank).astype(np.float64):
        if nesterov:
            u = 0.9 * (u + g)
            v += u + g
        else:
            u = 0.9 * u + g
            v += u
    return v


def test_the_groups_are_as_the_user_made_them_in_a_checkpoint(rank, size):
    _, optimizer = train(rank, "dgc")
    saved = optimizer.state_dict()
    assert (saved["param_groups"][0]["momentum"], saved["param_groups"][0]["nesterov"]) == (0.9, True)
    if size > 1:
        assert optimizer.param_groups[0]["momentum"] == 0, "or it would be applied twice"
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["momentum"] == 0


@pytest.mark.interplay("learning rate schedules", "DistributedOptimizer", "supported")
def test_a_scheduler_may_change_it(rank, size):
    if size < 2:
        pytest.skip("in a world of one the optimizer keeps its momentum")
    _, optimizer = train(rank, "dgc")
    optimizer.param_groups[0]["momentum"] = 0.5
    optimizer.step()
    assert optimizer.param_groups[0]["momentum"] == 0
    assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.5


@pytest.mark.parametrize("schedule", ["OneCycleLR", "CyclicLR"])
def test_a_schedule_of_the_momentum_leaves_nesterovs(rank, size, schedule):
    """Small parameters go uncompressed, so numbers are those of SGD in one process."""

    def trained(wraps):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        if wraps:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression="dgc")
        if schedule == "OneCycleLR":
            rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
        else:
            rates = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=5)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(2, 5)).square().mean().backward()
            optimizer.step()
            rates.step()
        return model, optimizer.state_dict()["param_groups"][0]

    (ours, group), (alone, wanted) = trained(True), trained(False)
    assert (group["momentum"], group["nesterov"]) == (wanted["momentum"], True)
    for mine, theirs in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: torch.optim.Adam(p), "Adam is no torch.optim.SGD: use SGD, or say momentum=0"),
        (lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.1), "without dampening"),
    ],
)
def test_a_momentum_that_cannot_be_taken_over_is_refused(rank, size, make, said):
    if size < 2:
        pytest.skip("in a world of one nothing is compressed")
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    with pytest.raises(InvalidArgumentError, match=said):
        hvd.DistributedOptimizer(make([parameter]), [("p", parameter)], compression="dgc")
    with pytest.raises(InvalidArgumentError, match="no choice among others"):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter]), [("p", parameter)], compression="auto(dgc, onebit)")
    hvd.DistributedOptimizer(torch.optim.Adam([parameter]), [("p", parameter)], compression="dgc", momentum=0)

"""Models in DDP that come, go, are copied and have uneven data: the numbers are those without the hook."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from casync.session import default
from support.ddp_models import STEPS, Used, assert_like, batch, group_of_mine, hooked, train
from support.replicas import assert_same_everywhere

pytestmark = [pytest.mark.usefixtures("gloo"), pytest.mark.filterwarnings("ignore")]


# --- models that come, go and are copied ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "fp16", "always(onebit)"])
def test_two_models_with_the_same_names_train_in_turn(rank: int, codec: str) -> None:
    """As the two of a GAN."""
    first, second = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    states = hooked(first, codec), hooked(second, codec)
    plain = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    for one, other in ((first, second), plain):
        optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.05) for ddp in (one, other)]
        for step in range(2 * STEPS):
            for ddp, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                ddp(batch(step + (7 if ddp is other else 0), rank)).backward()
                optimizer.step()
    if codec == "none":
        assert_like(first, plain[0])
        assert_like(second, plain[1])
    names = {name for name, _ in first.module.named_parameters()}
    for ddp, state in zip((first, second), states, strict=True):
        for name, parameter in ddp.named_parameters():
            assert_same_everywhere(parameter, name)
        assert codec != "always(onebit)" or hvd.size() == 1 or set(state.state_dict()["residuals"]) == names


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_model_is_put_into_ddp_again(rank: int, is_kept: bool) -> None:
    mine, theirs = Used(), Used()
    kept = []
    for model in (mine, theirs):
        for _ in range(3):
            ddp = DistributedDataParallel(model)
            if model is mine:
                hooked(ddp, "none")
            train(ddp, rank)
            kept += [ddp] if is_kept else []
    assert_like(mine, theirs)


def pickled(ddp: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(ddp))  # noqa: S301  # it is ours


def saved(ddp: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu")])
def test_copies_of_a_model_in_ddp(rank: int, copied: Callable[[Any], Any], named: bool, scaler: Any) -> None:
    """The copy trains as a copy of a DDP without a hook does, and so does the original."""
    mine, theirs = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    names = mine.module.named_parameters() if named else None
    mine.register_comm_hook(hvd.ddp_state("always(onebit)", names, grad_scaler=scaler), hvd.ddp_hook)
    before = copied(mine)
    train(mine, rank)
    theirs.load_state_dict(mine.state_dict())
    after, plain = copied(mine), copied(theirs)
    assert_like(after, mine)
    for copy_of in (before, after, plain):
        train(copy_of, rank)
    assert_like(after, plain)
    hooked(after, "none", named)  # DDP has room for it
    for copy_of in (after, plain):
        train(copy_of, rank)
    assert_like(after, plain)
    train(mine, rank)
    for name, parameter in mine.named_parameters():
        assert_same_everywhere(parameter, name)


def test_an_average_of_weights(rank: int) -> None:
    mine, theirs = DistributedDataParallel(Used()), DistributedDataParallel(Used())
    hooked(mine)
    averages = []
    for ddp in (mine, theirs):
        average = torch.optim.swa_utils.AveragedModel(ddp, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for _ in range(3):
            train(ddp, rank, steps=1)
            average.update_parameters(ddp)
        averages.append(average)
    assert_like(*averages)
    torch.testing.assert_close(averages[0](batch(9, 0)), averages[1](batch(9, 0)), rtol=1e-3, atol=1e-4)


# --- uneven data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize("settings", [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}])
@pytest.mark.parametrize("epochs", [1, 2])
def test_ranks_with_less_data(rank: int, by_initial: bool, settings: dict[str, Any], epochs: int) -> None:
    mine, theirs = Used(), Used()
    for model in (mine, theirs):
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.002, **settings)
        if model is mine:
            hooked(ddp)
        for epoch in range(epochs):
            with ddp.join(divide_by_initial_world_size=by_initial):
                train(ddp, rank, steps=2 + (rank + epoch) % 3)
        train(ddp, rank)  # and with even data
    assert_like(mine, theirs)


def test_ranks_with_less_data_in_a_group(rank: int, size: int) -> None:
    group = group_of_mine(rank, size)
    mine, theirs = Used(), Used()
    for model in (mine, theirs):
        ddp = DistributedDataParallel(model, process_group=group)
        if model is mine:
            hooked(ddp)
        with Join([ddp], divide_by_initial_world_size=False):
            train(ddp, rank, steps=2 + rank)
    assert_like(mine, theirs)


def test_residuals_with_less_data(rank: int) -> None:
    model = Used()
    hooked(ddp := DistributedDataParallel(model), "always(onebit)")
    with ddp.join():
        train(ddp, rank, steps=2 + 2 * rank)
    for name, parameter in model.named_parameters():
        assert_same_everywhere(parameter, name)


def test_what_fails_while_a_rank_has_joined(rank: int, size: int) -> None:
    """It raises on all ranks the error of its kind, and leaves nothing outstanding."""
    if size < 2:
        pytest.skip("ranks that disagree")
    model = Used()
    ddp = DistributedDataParallel(model)
    hooked(ddp, {"first.weight": "fp16" if rank else "bf16", "*": "none"})
    with pytest.raises(hvd.MismatchError, match=r"first\.weight"), ddp.join():
        train(ddp, rank, steps=min(rank, 1))
    assert not default.session().has_outstanding

"""What programs do with DistributedDataParallel: with the hook it has the numbers that it has without."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import casync.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.ddp_models import Checkpointed, Dense, Odd, Used, batch, compare, hooked
from support.replicas import assert_same_everywhere

pytestmark = [pytest.mark.usefixtures("gloo"), pytest.mark.filterwarnings("ignore")]


# --- how DDP is set up ------------------------------------------------------------------------------------------------

NEW = {"batched_grad_copy", "skip_all_reduce_unused_params"} - set(
    inspect.signature(DistributedDataParallel.__init__).parameters
)


@pytest.mark.parametrize(
    ("make", "varies", "settings"),
    [
        pytest.param(Used, False, {"gradient_as_bucket_view": True}, id="views"),
        pytest.param(Used, False, {"static_graph": True}, id="static"),
        pytest.param(Dense, False, {"static_graph": True}, id="static-unused"),
        pytest.param(Dense, True, {"find_unused_parameters": True}, id="unused"),
        pytest.param(Dense, True, {"find_unused_parameters": True, "gradient_as_bucket_view": True}, id="unused-views"),
        pytest.param(
            Dense, False, {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}, id="unused-skipped"
        ),
        pytest.param(Used, False, {"batched_grad_copy": True}, id="batched"),
        pytest.param(lambda: Checkpointed(True), False, {}, id="reentrant"),
        pytest.param(lambda: Checkpointed(False), False, {}, id="checkpointed"),
        pytest.param(lambda: Checkpointed(True), False, {"static_graph": True}, id="reentrant-static"),
        pytest.param(Odd, False, {}, id="odd"),
        pytest.param(Odd, False, {"gradient_as_bucket_view": True}, id="odd-views"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_settings_of_ddp(
    rank: int, make: Callable[[], nn.Module], varies: bool, settings: dict[str, Any], named: bool
) -> None:
    if NEW & set(settings):
        pytest.skip("torch has no such setting yet")
    compare(rank, make, varies, named, **settings)


def test_gradients_that_ddp_reduces_late_by_itself(rank: int) -> None:
    """It keeps them from the hook. DDP reduces them beside the program and waits for nothing: so there is one step, and
    its numbers come in a while.
    """

    def wrapped(model: Used) -> DistributedDataParallel:
        late = [("second.weight", model.second.weight), ("second.bias", model.second.bias)]
        return DistributedDataParallel(
            model, delay_all_reduce_named_params=late, param_to_hook_all_reduce=model.first.weight
        )

    mine, theirs = wrapped(Used()), wrapped(Used())
    hooked(mine)
    mine(batch(0, rank)).backward()
    theirs(batch(0, rank)).backward()
    pairs = [
        (one.grad, other.grad)
        for one, other in zip(mine.module.parameters(), theirs.module.parameters(), strict=True)
        if one.grad is not None and other.grad is not None
    ]
    assert len(pairs) >= 4
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and not all(torch.allclose(one, other) for one, other in pairs):
        time.sleep(0.01)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


@pytest.mark.interplay("sparse embeddings", "DDP hook", "supported", "uncompressed, or in 16 bits")
@pytest.mark.parametrize("codec", ["none", "always(onebit)", "fp16"])
@pytest.mark.parametrize("views", [True, False])
def test_sparse_embeddings(rank: int, codec: str, views: bool) -> None:
    """Words that one rank alone has, and that several have."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Linear(4, 3), nn.Embedding(1, 1, max_norm=1.0))[:2]

    def train(ddp: nn.Module) -> None:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            ddp(torch.tensor([step, rank, rank + 3, 3])).square().mean().backward()
            optimizer.step()

    mine, theirs = make(), make()
    ddp = DistributedDataParallel(mine, gradient_as_bucket_view=views)
    hooked(ddp, {"0.weight": codec, "*": "none"})
    train(ddp)
    train(DistributedDataParallel(theirs, gradient_as_bucket_view=views))
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("codec", ["fp16", "always(onebit)", "always(powersgd(rank=2))"])
def test_complex_gradients_are_compressed_whole(rank: int, codec: str) -> None:
    model = Odd()
    hooked(ddp := DistributedDataParallel(model), codec)
    alone = Odd()
    ddp(batch(0, rank)).backward()
    sum(alone(batch(0, each)) for each in range(hvd.size())).div(hvd.size()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_same_everywhere(torch.view_as_real(parameter.grad) if parameter.is_complex() else parameter.grad, name)
    if codec == "fp16":
        assert model.c.grad is not None and alone.c.grad is not None
        torch.testing.assert_close(model.c.grad, alone.c.grad, rtol=2e-2, atol=1e-2)


class Branches(nn.Module):
    """Linear in each of its parameters, of which a step uses some: so gradients do not hang on what was sent before."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(40, 12)), nn.Parameter(torch.zeros(40, 12))

    def forward(self, x: torch.Tensor, used: str) -> torch.Tensor:
        terms = [(getattr(self, name) @ x.T).sum() for name in used]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("views", [True, False])
def test_nothing_is_lost_of_parameters_that_go_unused(rank: int, size: int, to_none: bool, views: bool) -> None:
    """On one rank, or on all of them, as those of the network that a GAN does not train in this step."""
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=views)
    state = hooked(ddp, "always(onebit)")
    sums = {name: torch.zeros(12) for name in "ab"}
    for step, used in enumerate(["ab", "a", "b", "b", "ab", "a", "a"]):
        ddp.zero_grad(set_to_none=to_none)
        ddp(batch(step, rank), "ab"[rank % 2] if step == 4 else used).backward()
        for name, parameter in model.named_parameters():
            users = [each for each in range(size) if name in ("ab"[each % 2] if step == 4 else used)]
            for each in users:
                sums[name] += batch(step, each).sum(0) / size
            if parameter.grad is not None:
                with torch.no_grad():
                    parameter.add_(parameter.grad)
    for name, values in model.named_parameters():
        pending = state.state_dict()["residuals"].get(name, torch.zeros(480))
        pending = hvd.allreduce(pending.reshape(40, 12), name=f"pending.{name}")
        assert size == 1 or pending.any()
        torch.testing.assert_close(values + pending, sums[name].expand(40, 12), rtol=1e-4, atol=1e-4)

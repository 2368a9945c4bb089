"""Models in DistributedDataParallel, with the hook and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casync.torch as hvd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 3


class Dense(nn.Module):
    """A layer goes unused in steps without `is_long`, and one always."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(12, 40), nn.Linear(40, 40), nn.Linear(40, 4)
        self.never = nn.Linear(40, 4)

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        y: torch.Tensor = self.first(x).relu()
        if is_long:
            y = self.second(y).relu()
        loss: torch.Tensor = self.third(y).square().mean()
        return loss


class Used(Dense):
    """All of it is used."""

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        more: torch.Tensor = self.never(self.first(x)).mean()
        return super().forward(x) + more


class Checkpointed(Used):
    """Parts of backward are passes of their own."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self._use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        y = checkpoint(lambda z: self.second(z).relu(), self.first(x).relu(), use_reentrant=self._use_reentrant)
        loss: torch.Tensor = self.third(y).square().mean() + self.never(self.first(x)).mean()
        return loss


class Odd(nn.Module):
    """Parameters of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(12, 8))
        self.t = nn.Parameter(torch.randn(12, 8).t())
        self.c = nn.Parameter(torch.randn(12, 8, dtype=torch.complex64))
        self.cc = nn.Parameter(torch.randn(12, dtype=torch.complex128))
        self.point = nn.Parameter(torch.tensor(1 + 2j))
        self.kernel = nn.Parameter(torch.randn(4, 2, 3, 3, dtype=torch.complex64).to(memory_format=torch.channels_last))
        self.real_kernel = nn.Parameter(torch.randn(4, 2, 3, 3).to(memory_format=torch.channels_last))
        self.empty = nn.Parameter(torch.empty(0, 12))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.exact = nn.Parameter(torch.randn(12, 3, dtype=torch.float64))
        self.brief = nn.Parameter(torch.randn(12, 3).bfloat16())
        self.narrow = nn.Parameter(torch.randn(12, 3).half())

    def forward(self, x: torch.Tensor, is_long: bool = True) -> torch.Tensor:
        z = torch.complex(x, 0.5 * x)
        image = x[:2, :9].reshape(1, 2, 3, 3)
        kernels = (self.kernel * torch.complex(image, -image)).abs().square().mean() + (self.real_kernel * image).sum()
        complexes = ((z @ self.c) * (1 + 2j) - self.point).abs().square().mean() + (z * self.cc).sum().abs().float()
        reals = (x @ self.w).square().mean() * self.scalar + (x @ self.t.t()).sin().mean() + self.empty.sum()
        others = (x.double() @ self.exact).square().mean().float() + (x.bfloat16() @ self.brief).float().mean()
        return kernels + complexes + reals + others + (x.half() @ self.narrow).float().mean()


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(6, 12, generator=torch.Generator().manual_seed(100 * step + rank))


def hooked(ddp: DistributedDataParallel, codec: Any = "none", named: bool = True) -> hvd.ddp.DdpState:
    state = hvd.ddp_state(codec, ddp.module.named_parameters() if named else None)
    ddp.register_comm_hook(state, hvd.ddp_hook)
    return state


def train(ddp: nn.Module, rank: int, steps: int = STEPS, varies: bool = False, forward: Any = None) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        (forward or ddp)(batch(step, rank), **({"is_long": step % 2 == 0} if varies else {})).backward()
        optimizer.step()


def _naming(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"


def assert_like(mine: nn.Module, theirs: nn.Module) -> None:
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4, msg=_naming(name))


def compare(
    rank: int, make: Callable[[], nn.Module], varies: bool = False, named: bool = True, **settings: Any
) -> None:
    mine, theirs = make(), make()
    ddp = DistributedDataParallel(mine, bucket_cap_mb=0.002, **settings)
    hooked(ddp, named=named)
    train(ddp, rank, varies=varies)
    train(DistributedDataParallel(theirs, bucket_cap_mb=0.002, **settings), rank, varies=varies)
    assert_like(mine, theirs)
    assert any(not torch.equal(one, other) for one, other in zip(mine.parameters(), make().parameters(), strict=True))


def parts(size: int) -> list[list[int]]:
    """All ranks but the last, and the last."""
    return [list(range(size - 1)), [size - 1]] if size > 1 else [[0]]


def group_of_mine(rank: int, size: int) -> Any:
    groups = [dist.new_group(ranks) for ranks in parts(size)]
    return groups[-1] if rank == size - 1 else groups[0]

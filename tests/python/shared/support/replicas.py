"""Models and tensors that must be alike, on one rank or on all."""

from __future__ import annotations

import casync.torch as hvd
import torch
from torch import nn


def assert_same_everywhere(tensor: torch.Tensor, name: str = "") -> None:
    """All ranks have equal tensors."""
    rows = hvd.allgather(tensor.detach().reshape(1, -1))
    assert all(torch.equal(row, rows[0]) for row in rows), name


def assert_replicas_identical(model: nn.Module) -> None:
    """All ranks have equal parameters."""
    for name, parameter in model.named_parameters():
        assert_same_everywhere(parameter, name)


def assert_same(model: nn.Module, other: nn.Module, *, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Both models have the same parameters but for rounding."""
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name, rtol=rtol, atol=atol)


def assert_same_bits(model: nn.Module, other: nn.Module) -> None:
    """Both models have equal parameters."""
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name

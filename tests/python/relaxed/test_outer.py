"""The outer optimizers of CaSync beside torch's."""

import numpy as np
import pytest
import torch
from casync.numpy.tensors import TENSORS

from casync.errors import InvalidArgumentError
from casync.relaxed.outer import Averaging, Nesterov


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.5)])
def test_nesterov_is_torchs_sgd(lr: float, momentum: float) -> None:
    rng = np.random.default_rng(0)
    anchor = rng.standard_normal(50).astype(np.float32)
    parameter = torch.tensor(anchor.copy())
    theirs = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=momentum > 0)
    ours: Nesterov[np.ndarray] = Nesterov(lr, momentum)
    ours.take(TENSORS, {"w": anchor})
    for _ in range(20):
        change = rng.standard_normal(50).astype(np.float32)
        parameter.grad = torch.tensor(change)
        theirs.step()
        ours.step(["w"], [change])
        np.testing.assert_allclose(anchor, parameter.numpy(), rtol=1e-5, atol=1e-6)


def test_a_state_goes_on_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    changes = [rng.standard_normal(9).astype(np.float32) for _ in range(6)]
    whole, half = np.ones(9, np.float32), np.ones(9, np.float32)
    first: Nesterov[np.ndarray] = Nesterov()
    first.take(TENSORS, {"w": whole})
    for change in changes:
        first.step(["w"], [change])
    second: Nesterov[np.ndarray] = Nesterov()
    second.take(TENSORS, {"w": half})
    for change in changes[:3]:
        second.step(["w"], [change])
    third: Nesterov[np.ndarray] = Nesterov()
    third.take(TENSORS, {"w": half})
    third.load_state_dict(second.state_dict())
    for change in changes[3:]:
        third.step(["w"], [change])
    np.testing.assert_array_equal(half, whole)


def test_averaging_is_nesterov_with_lr_1_and_no_momentum() -> None:
    rng = np.random.default_rng(2)
    one, other = np.ones(9, np.float32), np.ones(9, np.float32)
    averaging: Averaging[np.ndarray] = Averaging()
    nesterov: Nesterov[np.ndarray] = Nesterov(1.0, 0.0)
    averaging.take(TENSORS, {"w": one})
    nesterov.take(TENSORS, {"w": other})
    for _ in range(5):
        change = rng.standard_normal(9).astype(np.float32)
        averaging.step(["w"], [change])
        nesterov.step(["w"], [change])
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("lr", "momentum"), [(0.0, 0.9), (-1.0, 0.0), (0.7, 1.0), (0.7, -0.1), (float("nan"), 0.0)])
def test_what_cannot_be_is_refused(lr: float, momentum: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Nesterov(lr, momentum)


def test_another_optimizers_state_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="averaging keeps nothing"):
        Averaging().load_state_dict({"velocities": {}})

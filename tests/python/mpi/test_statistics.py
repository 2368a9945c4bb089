"""What codecs promise of their errors, from one rank to all: no bias, a contraction, the number of values sent.

Ranks submit the same gradient by `direct`, so the result is what the codec makes of it, whatever the number of ranks.
"""

import casync.torch as hvd
import numpy as np
import pytest
import torch

from casync.session import default

pytestmark = pytest.mark.usefixtures("several")

SHAPE = (96, 128)
NUMEL = SHAPE[0] * SHAPE[1]
UNBIASED = ["terngrad(bits=2)", "terngrad(bits=4)", "ternary(clip=64)", "qsgd(bits=4)", "int8", "rotated"]
"""Whose errors are independent and have no mean."""
FEEDBACK = ["onebit", "efsignsgd", "topk(ratio=0.05)", "randomk(ratio=0.1)", "sparseloco", "int4", "thc", "tbq"]
FEEDBACK += ["threelc"]
"""Whose errors are sent later."""
HEAVY = {
    "normal": lambda rng: rng.standard_normal(NUMEL),
    "laplace": lambda rng: rng.laplace(size=NUMEL),
    "lognormal": lambda rng: rng.lognormal(sigma=2, size=NUMEL) * rng.choice((-1, 1), NUMEL),
    "of two sizes": lambda rng: rng.standard_normal(NUMEL) * np.where(np.arange(NUMEL) < NUMEL // 8, 100, 1),
}


def drawn(kind="normal", seed=0):
    return torch.from_numpy(HEAVY[kind](np.random.default_rng(seed)).astype(np.float32)).reshape(SHAPE)


def encoded(gradient, codec, topology="direct", name="w"):
    """What the codec makes of a gradient that all ranks have."""
    return hvd.allreduce(gradient, name=name, compression=codec, topology=topology)


@pytest.mark.parametrize("topology", ["direct", "ps"])
@pytest.mark.parametrize("codec", UNBIASED)
def test_the_error_of_a_mean_over_steps_falls_with_the_root_of_their_number(codec, topology, rank, size):
    few, many = 16, 256
    gradient = drawn()
    total = np.zeros(SHAPE)
    errors = {}
    for number in range(1, many + 1):
        total += encoded(gradient, codec, topology).numpy().astype(np.float64)
        if number in (few, many):
            errors[number] = float(np.linalg.norm(total / number - gradient.numpy()))
    root = (many / few) ** 0.5
    assert 0.85 * root < errors[few] / errors[many] < 1.15 * root, errors


@pytest.mark.parametrize("codec", FEEDBACK)
def test_what_is_missing_after_many_steps_is_the_mean_of_one_residual_of_each_rank(codec, rank, size):
    gradient = drawn()
    total = np.zeros(SHAPE)
    for number in range(1, 129):
        total += encoded(gradient, codec).numpy().astype(np.float64)
        if number in (1, 16, 128):
            kept = torch.from_numpy(default.session().codec_states.residual("allreduce.w")).reshape(SHAPE)
            residual = hvd.allreduce(kept, name="residual").numpy()
            missing = number * gradient.numpy().astype(np.float64) - total
            np.testing.assert_allclose(missing, residual, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", HEAVY)
def test_the_residual_is_what_a_codec_with_feedback_has_not_sent_and_smaller_than_the_gradient(kind, rank, size):
    gradient = drawn(kind)
    norm = float(gradient.norm()) ** 2
    bounds = {
        "onebit": 1.0,
        "efsignsgd": 1 - float(gradient.abs().sum()) ** 2 / (NUMEL * norm),  # Karimireddy et al. 2019, assumption A
        "topk(ratio=0.05)": 1 - 0.8 * 0.05,  # Stich et al. 2018; the threshold is sampled
        "sparseloco": 1.0,
        "int4": 1.0,
        "powersgd(rank=4, start_step=0)": 1.0,
    }
    for codec, bound in bounds.items():
        name = codec.partition("(")[0]
        left = gradient - encoded(gradient, codec, name=name)
        assert float(left.norm()) ** 2 <= bound * norm * 1.0001, codec
        residual = default.session().codec_states.residual(f"allreduce.{name}").reshape(SHAPE)
        np.testing.assert_allclose(residual, left.numpy(), rtol=0, atol=2e-6 * float(gradient.abs().max()))


@pytest.mark.parametrize("ratio", [0.01, 0.1])
@pytest.mark.parametrize("kind", HEAVY)
def test_a_sampled_threshold_keeps_about_as_many_values_as_it_is_asked_for(kind, ratio, rank, size):
    for seed in range(5):
        kept = int((encoded(drawn(kind, seed), f"topk(ratio={ratio})", name=f"w{seed}") != 0).sum())
        assert 0.8 * ratio * NUMEL <= kept <= 1.3 * ratio * NUMEL, (kind, kept / (ratio * NUMEL))


@pytest.mark.parametrize("codec", ["powersgd(rank=2, start_step=0)", "onebit", "topk(ratio=0.02)"])
def test_a_residual_does_not_grow_without_end(codec, rank, size):
    shape = (48, 100)
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(shape)
    norms = []
    for number in range(4000):
        noise = np.random.default_rng((number, rank)).standard_normal(shape)
        encoded(torch.from_numpy((mean + noise).astype(np.float32)), codec, "auto")
        if number % 500 == 499:
            norms.append(float(np.linalg.norm(default.session().codec_states.residual("allreduce.w"))))
    assert max(norms[4:]) < 1.5 * max(norms[:4]), norms

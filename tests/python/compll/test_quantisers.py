"""int8, int4, rotated, fp8, lossless, qsgd, ternary, minmax_uint8, efsignsgd, topk and sparseloco beside the formulas
of their papers, written in NumPy, and beside PyTorch's own 8-bit and 16-bit floats. The interpreter of the typed tree
(conftest.py) runs them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

F = np.float32
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def gradient(n: int, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * 0.01).astype(F)


def heavy(n: int) -> np.ndarray:
    return gradient(n) ** 3


def blocks(x: np.ndarray, length: int) -> list[np.ndarray]:
    return [x[begin : begin + length] for begin in range(0, len(x), length)]


def decoded_of(machine: Any, name: str, x: np.ndarray, step: int = 0, length: int = 0, **given: Any) -> np.ndarray:
    """What comes of x, in units of `length`."""
    found = []
    for own in blocks(x, length or len(x)):
        rank = machine(name, (1, len(own)), step=step, **given)
        found.append(rank.decode(rank.encode(own)))
    return np.concatenate(found)


@pytest.mark.parametrize("x", [gradient(1000), heavy(1000)], ids=["normal", "heavy"])
def test_int4_rounds_to_the_nearest_of_15_levels(machine: Any, x: np.ndarray) -> None:
    decoded = decoded_of(machine, "int4", x, length=128)
    for theirs, own in zip(blocks(decoded, 128), blocks(x, 128), strict=True):
        gap = np.abs(own.astype(np.float64)).max() / 7
        levels = np.rint(own / gap)
        sure = np.abs(np.abs(own / gap - np.trunc(own / gap)) - 0.5) > 1e-5
        np.testing.assert_allclose(theirs[sure], (levels * gap)[sure], rtol=1e-6)
        assert np.abs(theirs - own).max() <= gap / 2 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("name", "given", "length", "levels"),
    [
        ("int8", {}, 256, 127),
        ("qsgd", {}, 512, 7),
        ("qsgd", {"bits": 2}, 512, 1),
        ("qsgd", {"bits": 8}, 512, 127),
    ],
)
def test_stochastic_rounding_takes_one_of_the_two_levels_next_to_it_and_has_no_bias(
    machine: Any, name: str, given: dict[str, Any], length: int, levels: int
) -> None:
    x, draws = gradient(600), 64
    gaps = np.concatenate([np.full(len(own), np.abs(own).max() / F(levels), F) for own in blocks(x, length)])
    total = np.zeros(len(x))
    for step in range(draws):
        decoded = decoded_of(machine, name, x, step, length, **given)
        steps = decoded / gaps
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
        assert np.abs(steps).max() <= levels * (1 + 1e-6)
        assert np.abs(decoded - x).max() <= gaps.max() * (1 + 1e-5)
        total += decoded
    error = (total / draws - x) / gaps  # of standard deviation 1/2 a draw at most
    assert np.abs(error).max() < 4.5 * 0.5 / math.sqrt(draws)
    assert abs(error.mean()) < 4 * 0.5 / math.sqrt(draws * len(x))


def hadamard(n: int) -> np.ndarray:
    matrix: np.ndarray = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    return matrix / math.sqrt(len(matrix))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n", [1, 3, 256, 300, 700])
def test_rotated_rounds_each_block_of_a_hadamard_transform_without_bias(machine: Any, n: int, bits: int) -> None:
    x, draws, levels = heavy(n), 64, 2 ** (bits - 1) - 1
    total = np.zeros(n)
    decoded = [decoded_of(machine, "rotated", x, step, bits=bits) for step in range(draws)]
    for begin in range(0, n, 256):
        own = x[begin : begin + 256].astype(np.float64)
        matrix = hadamard(len(own))
        filled = len(matrix) - len(own)
        y = matrix @ np.pad(own, (0, filled))
        gap = np.abs(y).max() / levels
        for one in decoded:
            theirs = one[begin : begin + 256]
            if filled == 0:
                steps = matrix @ theirs / gap
                np.testing.assert_allclose(steps, np.rint(steps), atol=2e-4 * levels)
                assert np.abs(steps - y / gap).max() <= 1 + 1e-3
            total[begin : begin + 256] += theirs
        error = (total[begin : begin + 256] / draws - own) / gap  # of standard deviation 1/2 a draw at most
        assert np.abs(error).max() < 4.5 * 0.5 / math.sqrt(draws) + 1e-4 * levels


def test_rotated_spreads_a_value_that_stands_out(machine: Any) -> None:
    """Of third powers of normal values qsgd with as many bits is off by five times as much."""
    x = heavy(4096)
    errors = [np.square(decoded_of(machine, name, x, length=length) - x).sum() for name, length in
              (("rotated", 4096), ("qsgd", 512))]  # fmt: skip
    assert errors[0] < errors[1] / 3
    zeros = np.zeros(300, F)
    np.testing.assert_array_equal(decoded_of(machine, "rotated", zeros), zeros)


@pytest.mark.parametrize("x", [gradient(1000), heavy(1000), heavy(1000) ** 3], ids=["normal", "heavy", "heavier"])
def test_fp8_is_what_pytorch_rounds_to(machine: Any, x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    decoded = decoded_of(machine, "fp8", x, length=256)
    for theirs, own in zip(blocks(decoded, 256), blocks(x, 256), strict=True):
        scale = np.abs(own).max() / F(448)
        scaled = np.clip(own * (F(1) / scale), -448, 448)
        expected = torch.from_numpy(scaled).to(torch.float8_e4m3fn).float().numpy() * scale
        np.testing.assert_array_equal(theirs, expected)


def wild(n: int) -> np.ndarray:
    """The values have exponents from the whole range of float32. Zeros of both signs and subnormals are among them."""
    random = np.random.default_rng(7)
    x = (random.standard_normal(n) * np.exp2(random.integers(-149, 120, n))).astype(F)
    x[::7], x[1::7], x[2::50] = 0.0, -0.0, 1e-42
    return x


@pytest.mark.parametrize(
    "x", [gradient(5000), heavy(5000), wild(5000), np.zeros(300, F)], ids=["normal", "heavy", "wild", "zero"]
)
def test_lossless_is_bfloat16_bit_for_bit(machine: Any, x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(
        decoded_of(machine, "lossless", x, length=4096).view(np.uint32), expected.view(np.uint32)
    )


@pytest.mark.parametrize(("x", "bits"), [(gradient(4096), (12.0, 12.1)), (np.zeros(4096, F), (12.0, 12.02))])
def test_lossless_takes_three_quarters_of_16_bits(machine: Any, x: np.ndarray, bits: tuple[float, float]) -> None:
    least, most = bits
    assert least < 8 * len(machine("lossless", (1, len(x))).encode(x)) / len(x) < most


def test_minmax_uint8_is_baguas(machine: Any) -> None:
    """BAGUA's compressor in float64, without the 1e-7 that it adds to the range."""
    x = gradient(1000)
    x[10] = 0
    low, high = float(x.min()), float(x.max())
    scale = 255 / (high - low)
    upper = np.rint(high * scale)
    levels = np.minimum(np.rint(x.astype(np.float64) * scale), upper)
    expected = (np.clip(levels, upper - 255, upper)) / scale
    decoded = decoded_of(machine, "minmax_uint8", x)
    assert decoded[10] == 0
    np.testing.assert_allclose(decoded, expected, atol=1.01 / scale)
    assert (np.abs(decoded - expected) > 1e-6).mean() < 0.02  # where float32 rounds a tie to the other side
    assert np.abs(decoded - x).max() <= 1.01 / scale


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30, 1e30])
def test_minmax_uint8_of_one_value_is_exact(machine: Any, value: float) -> None:
    x = np.full(700, value, F)
    np.testing.assert_array_equal(decoded_of(machine, "minmax_uint8", x), x)


def test_minmax_uint8_far_from_zero_keeps_its_range(machine: Any) -> None:
    x = F(1000) + gradient(700)
    decoded = decoded_of(machine, "minmax_uint8", x)
    assert np.abs(decoded - x).max() <= (x.max() - x.min()) / 255 + 1e-4  # of which float32 has 6e-5


def test_efsignsgd_sends_the_mean_magnitude(machine: Any) -> None:
    x = heavy(1000)
    scale = np.abs(x.astype(np.float64)).mean()
    np.testing.assert_allclose(decoded_of(machine, "efsignsgd", x), np.where(x >= 0, scale, -scale), rtol=1e-6)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1e-6])
def test_topk_sends_the_largest(machine: Any, ratio: float) -> None:
    x = gradient(1000)
    decoded = decoded_of(machine, "topk", x, ratio=F(ratio))
    k = max(1, math.ceil(ratio * 1000))
    expected = np.zeros_like(x)
    largest = np.argsort(-np.abs(x), kind="stable")[:k]
    expected[largest] = x[largest]
    np.testing.assert_array_equal(decoded, expected)


def clipped(x: np.ndarray, clip: float) -> tuple[float, np.ndarray]:
    """The scale of TernGrad, and what it makes of x on average."""
    wide = x.astype(np.float64)
    scale = min(np.abs(wide).max(), clip * math.sqrt(np.square(wide).mean()))
    return scale, np.clip(wide, -scale, scale)


@pytest.mark.parametrize("clip", [2.5, 1.5, 64.0])
@pytest.mark.parametrize("x", [gradient(600), heavy(600), heavy(600) * F(1e30)], ids=["normal", "heavy", "huge"])
def test_ternary_is_the_clipped_gradient_on_average(machine: Any, x: np.ndarray, clip: float) -> None:
    draws, total = 64, np.zeros(len(x))
    scale, expected = clipped(x, clip)
    for step in range(draws):
        decoded = decoded_of(machine, "ternary", x, step, clip=F(clip))
        np.testing.assert_allclose(np.abs(decoded[decoded != 0]), scale, rtol=1e-6)
        assert (decoded * x >= 0).all()
        assert (np.abs(decoded) > 0)[np.abs(x) > scale * 1.0001].all()
        total += decoded
    share = np.abs(expected) / scale  # how often it is sent; a draw's deviation is the root of share * (1 - share)
    error = (total / draws - expected) / scale
    assert np.abs(error).max() < 4.5 * 0.5 / math.sqrt(draws)
    assert abs(error.mean()) < 4 * math.sqrt((share * (1 - share)).mean() / draws / len(x))
    if clip == 64:
        np.testing.assert_allclose(expected, x, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30, 1e30])
def test_ternary_of_one_value_is_exact(machine: Any, value: float) -> None:
    x = np.full(700, value, F)
    np.testing.assert_allclose(decoded_of(machine, "ternary", x), x, rtol=1e-6)


def test_ternary_sends_what_is_tiny_as_zeros(machine: Any) -> None:
    assert not decoded_of(machine, "ternary", np.full(700, 2.0**-101, F)).any()


def sparseloco(x: np.ndarray, k: int = 64, width: float = 6) -> np.ndarray:
    """Of each chunk the k largest, each as the mean of those in its bin; in float64."""
    decoded = np.zeros(len(x))
    for begin in range(0, len(x), 4096):
        own = x[begin : begin + 4096].astype(np.float64)
        sent = np.argsort(-np.abs(own), kind="stable")[:k]
        value, place = own[sent], np.zeros(len(sent), int)
        if value.std() > 0:
            place = np.clip(np.floor((value - value.mean()) / (width * value.std() / 4)) + 2, 0, 3).astype(int)
        decoded[begin + sent] = [value[place == bin].mean() for bin in place]
    return decoded


@pytest.mark.parametrize(("k", "width"), [(64, 6.0), (1, 6.0), (300, 2.5), (4096, 6.0)])
@pytest.mark.parametrize(
    "x", [gradient(5000), heavy(5000), heavy(5000) * F(1e30), gradient(40)], ids=["normal", "heavy", "huge", "few"]
)
def test_sparseloco_sends_the_mean_of_each_bin(machine: Any, x: np.ndarray, k: int, width: float) -> None:
    decoded = decoded_of(machine, "sparseloco", x, length=4096, k=k, range=F(width))
    np.testing.assert_allclose(decoded, sparseloco(x, k, width), rtol=2e-5, atol=1e-7 * np.abs(x).max())


def test_sparseloco_has_fourteen_bits_for_each_value_that_it_sends(machine: Any) -> None:
    x = gradient(4096)
    payload = machine("sparseloco", (1, 4096)).encode(x)
    assert len(payload) == 4 * 4 + 64 * 14 / 8
    for length in (1, 63, 64, 65):  # all of a chunk that is shorter
        few = machine("sparseloco", (1, length))
        assert np.count_nonzero(few.decode(few.encode(x[:length]))) == min(64, length)

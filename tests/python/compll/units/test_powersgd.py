"""Two rounds, matrices and a warm start: powersgd against float64, and bit by bit against the order of additions that
docs/compll.md and kernels/operators/{matmul,orth}.hpp state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

F = np.float32
SHAPES = [(4, 5, 1), (5, 4, 4), (17, 31, 2), (64, 64, 4), (300, 70, 3), (130, 1100, 2), (1100, 130, 70)]


def tree(products: np.ndarray) -> np.ndarray:
    """reduce(..., add) over the first axis: blocks of 1024, sixteen lanes, folded 8, 4, 2, 1."""
    total = np.zeros(products.shape[1:], F)
    for begin in range(0, len(products), 1024):
        block = products[begin : begin + 1024]
        lanes = np.zeros((16, *products.shape[1:]), F)
        for i in range(0, len(block), 16):
            part = block[i : i + 16]
            lanes[: len(part)] = lanes[: len(part)] + part
        for half in (8, 4, 2, 1):
            lanes = lanes[:half] + lanes[half : 2 * half]
        total = total + lanes[0]
    return total


def by_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A times B, of which A lies row after row."""
    return np.stack([tree(row[:, None] * b) for row in a])


def by_columns(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A transposed times B: rows in order, 128 at a time."""
    total = np.zeros((a.shape[1], b.shape[1]), F)
    for begin in range(0, len(a), 128):
        run = np.zeros_like(total)
        for row in range(begin, min(begin + 128, len(a))):
            run = run + a[row][:, None] * b[row][None, :]
        total = run if begin == 0 else total + run
    return total


def orth(a: np.ndarray) -> np.ndarray:
    columns = [column.copy() for column in a.T]
    for number, column in enumerate(columns):
        length = np.sqrt(tree(column * column))
        for unit in columns[:number]:
            column -= tree(unit * column) * unit
        left = np.sqrt(tree(column * column))
        column[:] = 0 if left <= F(2.0**-16) * length else column / left
    return np.stack(columns, axis=1)


def gradient(rows: int, cols: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal(rows * cols).astype(F)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("name", ["powersgd"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_rounds_and_what_decode_keeps(name: str, shape: tuple[int, int, int], workshop: Any, native: Any) -> None:
    rows, cols, rank_ = shape
    settings, r = {"rank": rank_, "start_step": 0}, min(shape)
    x = gradient(rows, cols)
    M = x.reshape(rows, cols)
    for isa, library in workshop.built(name).items():
        rank = native(library, name, (rows, cols), settings)
        for step in range(2):
            Q = rank.states[0].reshape(cols, r).copy()
            first, nonfinite = rank.encode(x)
            assert first is not None and not nonfinite and len(first) == rank.bound(0) == 4 * rows * r
            P = np.frombuffer(first, F).reshape(rows, r)
            assert P.tobytes() == by_rows(M, Q).tobytes(), f"{isa}, step {step}"
            received = P.ravel().copy()
            second, nonfinite = rank.encode(x, round_=1, received=received)
            assert second is not None and not nonfinite and len(second) == rank.bound(1) == 4 * cols * r
            new = np.frombuffer(second, F).reshape(cols, r)
            assert new.tobytes() == by_columns(M, orth(P)).tobytes(), f"{isa}, step {step}"
            decoded = rank.decode(second, received=received, round_=1)
            assert rank.states[0].tobytes() == Q.tobytes()
            assert decoded.tobytes() == by_rows(orth(P), new.T).tobytes(), f"{isa}, step {step}"
            exact, _ = np.linalg.qr(P.astype(float))
            np.testing.assert_allclose(decoded.reshape(rows, cols), exact @ (exact.T @ M), atol=2e-3)
            rank.decode(second, received=received, round_=1, keep=True)
            assert rank.states[0].tobytes() == new.tobytes()


@pytest.mark.parametrize("name", ["powersgd"])
def test_what_is_not_finite_leaves_the_warm_start(name: str, workshop: Any, native: Any) -> None:
    x, bad = gradient(40, 25), gradient(40, 25)
    bad[7] = np.inf
    for library in workshop.built(name).values():
        rank = native(library, name, (40, 25), {})
        before = rank.states[0].copy()
        payload, nonfinite = rank.encode(bad)
        assert nonfinite and np.isnan(np.frombuffer(payload, F)).all()
        received = np.full(40 * 4, np.nan, F)
        payload, _ = rank.encode(x, round_=1, received=received)
        decoded = rank.decode(np.full(25 * 4, np.nan, F).tobytes(), received=received, round_=1, keep=True)
        assert np.isnan(decoded).all() and rank.states[0].tobytes() == before.tobytes()
        healthy, _ = rank.encode(x)
        P = np.frombuffer(healthy, F).copy()
        decoded = rank.decode(np.full(25 * 4, np.nan, F).tobytes(), received=P, round_=1, keep=True)
        assert np.isnan(decoded).all() and rank.states[0].tobytes() == before.tobytes()

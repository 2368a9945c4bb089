"""Gradients that carry a loss scale which changes between steps, as a GradScaler has it: as an optimizer submits them.

Scales are powers of two, so nothing but exponents may differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from casync.collectives.gradient_submits import Gradient, GradientSubmits, OptimizerSettings
from casync.collectives.settings import Settings
from casync.session import default
from casync.tensors.adaptor import adaptor_of
from support.arrays import Array
from support.bindings import Binding
from support.ranks import LIMITS

NUMEL = 20_001
SCALES = [2.0**10, 2.0**10, 2.0**11, 2.0**16, 2.0**15, 2.0**3]
CODECS = ["onebit", "threelc", "always(graddrop(drop=0.9))", "terngrad(bits=4)", "tbq", "none"]
CODECS += ["onebit(feedback_decay=0.75)", "always(graddrop(drop=0.9, feedback_decay=0.75))"]
CODECS += ["onebit(feedback_bits=8)"]


class Training:
    """Steps of one gradient that goes by `codec`."""

    def __init__(self, adaptor: Binding, codec: str) -> None:
        self._adaptor = adaptor
        self._gradient = Gradient("w")
        self._submits: GradientSubmits[Any] = GradientSubmits(
            adaptor_of(adaptor.ones(1)), Settings.of(compression=codec, topology=None), always_claims=True
        )
        self._submits.take([self._gradient])

    def step(self, values: Array, scale: float) -> Array:
        """What all ranks' values, which carry `scale`, come to."""
        owner, submits, gradient = default.session(), self._submits, self._gradient
        tensor = self._adaptor.tensor(values)
        if not submits.is_registered(owner, gradient, "float32", values.shape, None):
            submits.register(owner, gradient, tensor, "float32", values.shape, None)
        submits.tell(owner, gradient, OptimizerSettings(loss_scale=scale))
        owner.synchronize(submits.submit(owner, gradient, tensor))
        return self._adaptor.array(tensor)

    def kept(self) -> dict[str, Any]:
        """What the codec keeps of the gradient on this rank."""
        return self._submits.state_dict([self._gradient], lambda array: array.tobytes())


@pytest.fixture(autouse=True)
def in_place(in_place_forms: None) -> None:
    """An optimizer submits gradients in place."""


def gradient_of(step: int, rank: int) -> Array:
    return np.random.default_rng((step, rank)).standard_normal(NUMEL, np.float32)


@pytest.mark.parametrize("codec", CODECS)
def test_a_scale_that_changes_changes_nothing(adaptor, codec, rank):
    plain = Training(adaptor, codec)
    expected = [plain.step(gradient_of(step, rank), 1.0) for step in range(len(SCALES))]
    kept = plain.kept()
    default.shutdown()
    default.init(**LIMITS)
    scaled = Training(adaptor, codec)
    for step, scale in enumerate(SCALES):
        result = scaled.step(gradient_of(step, rank) * np.float32(scale), scale)
        np.testing.assert_array_equal(result, expected[step] * np.float32(scale))
    assert scaled.kept() == kept


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("codec", CODECS)
def test_an_overflow_on_one_rank_reaches_all_and_leaves_nothing_behind(adaptor, hvd, codec, bad, rank, size):
    """The scaler of each rank finds it, and lowers the scale; the gradients of the next step are well."""
    training = Training(adaptor, codec)
    for step, scale in enumerate([8.0, 8.0, 8.0, 4.0, 4.0]):
        values = gradient_of(step, rank) * np.float32(scale)
        before = training.kept()["residuals"]
        is_bad = step == 2 and rank == size - 1
        if is_bad:
            values[::7] = bad  # in every unit that a codec looks at by itself
        result = training.step(values, scale)
        assert np.isfinite(result).all() == (step != 2)
        assert not is_bad or size == 1 or training.kept()["residuals"] == before
        assert len(set(hvd.allgather_object(result.tobytes()))) == 1, "replicas are identical"

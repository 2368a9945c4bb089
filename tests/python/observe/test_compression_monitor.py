"""When a codec is measured, and when it is at fault: decisions, without ranks."""

import math
from dataclasses import replace

import pytest

from casync.collectives.codec_watch import report
from casync.errors import InvalidArgumentError
from casync.observe.compression_monitor import (
    CompressionMonitor,
    Measured,
    Sums,
    fault,
    is_due,
    measured,
    places,
    residual_ratio,
)
from casync.observe.metrics import CompressionMetrics

MONITOR = CompressionMonitor(error_bound=2.0, residual_bound=10.0, rises=2)


def test_the_first_measurements_are_close_together() -> None:
    assert [step for step in range(1, 250) if is_due(step, 100)] == [1, 2, 4, 8, 16, 32, 64, 100, 200]
    assert [step for step in range(1, 8) if is_due(step, 1)] == [1, 2, 3, 4, 5, 6, 7]
    assert [step for step in range(1, 20) if is_due(step, 6)] == [1, 2, 4, 6, 12, 18]


@pytest.mark.parametrize(("numel", "sample"), [(1, 10), (10, 10), (11, 10), (5000, 7), (5000, 4096)])
def test_a_sample_is_not_too_large_and_moves_on(numel: int, sample: int) -> None:
    seen: set[int] = set()
    for step in range(1, 60):
        first, stride = places(numel, sample, step)
        taken = range(numel)[first::stride]
        assert 0 < len(taken) <= sample
        seen.update(taken)
    assert len(seen) == min(numel, 59 * sample), "each element has its turn"


def sums(error=0.0, square=1.0, residual=0.0, gradient=1.0, keepers=0.0, nonfinite=0.0, broken=0.0) -> Sums:
    return Sums(error, square, residual, gradient, keepers, nonfinite, broken)


def test_what_sums_say() -> None:
    assert measured(sums(error=3.0, square=2.0, gradient=4.0)) == Measured(1.5, None, 2.0)
    assert measured(sums(error=3.0, square=2.0, residual=9.0, gradient=4.0, keepers=1)) == Measured(1.5, 3.0, 2.0)
    assert measured(sums(error=1.0, square=0.0, keepers=1)) == Measured(None, 0.0, 1.0), "nothing to compare with"
    assert measured(sums(nonfinite=1, broken=2)) is None, "a rank's own NaN is no fault of a codec"
    assert measured(sums(broken=1)) == Measured(math.inf, None, 1.0)
    assert measured(sums(broken=1, keepers=3)) == Measured(math.inf, math.inf, 1.0)


def kept(*residuals: float | None, gradient: float = 1.0) -> list[Measured]:
    return [Measured(500.0, residual, gradient) for residual in residuals]


def test_a_residual_is_compared_with_a_gradient_of_the_usual_size() -> None:
    assert residual_ratio(kept(3.0, gradient=2.0)) == 1.5
    assert residual_ratio([*kept(3.0, gradient=2.0), *kept(4.0, gradient=0.001)]) == 2.0, "a batch that is learnt"
    assert residual_ratio([*kept(3.0, gradient=2.0), *kept(4.0, gradient=0.0)]) == 2.0
    assert residual_ratio(kept(3.0, gradient=0.0)) is None and residual_ratio(kept(None)) is None


def test_an_error_beyond_its_bound_is_a_fault_where_nothing_is_kept() -> None:
    assert fault([Measured(2.0, None)], MONITOR) is None
    assert fault([Measured(None, None)], MONITOR) is None
    assert fault([Measured(2.1, None)], MONITOR) == "has a vNMSE of 2.1, and its bound is 2"
    assert fault([Measured(1e9, None)], CompressionMonitor()) is None, "there is no bound by default"
    assert fault(kept(1.0), MONITOR) is None, "what is held back is not lost"


def test_a_residual_is_a_fault_once_it_is_large_and_has_grown() -> None:
    assert fault(kept(1.0, 5.0, 11.0), MONITOR) == (
        "holds back 11 times the gradient, and its bound is 10; that has grown in 2 measurements, one after the other"
    )
    assert fault(kept(5.0, 11.0), MONITOR) is None, "it has grown once"
    assert fault(kept(1.0, 12.0, 11.0), MONITOR) is None, "it falls again"
    assert fault(kept(12.0, 12.0, 12.0), MONITOR) is None, "it stays"
    assert fault(kept(1.0, 5.0, 10.0), MONITOR) is None, "it is within its bound"
    assert fault(kept(9.0, 1.0, 5.0, 11.0), MONITOR) is not None, "what was before does not count"
    assert fault(kept(1.0, None, 5.0, 11.0), MONITOR) is None, "there was none in one of the last"
    assert fault([*kept(1.0), *kept(5.0, 11.0, gradient=0.0)], MONITOR) is not None, "the net is dead, and it grows"
    assert fault([*kept(1.0), *kept(5.0, 11.0, gradient=2.0)], MONITOR) is None, "so does the gradient"


def test_nan_of_finite_gradients_is_a_fault_at_once() -> None:
    assert fault([Measured(math.inf, None)], MONITOR) is not None
    assert fault([Measured(math.inf, math.inf)], CompressionMonitor(residual_bound=math.inf)) is not None


@pytest.mark.parametrize(
    "given",
    [{"every": 0}, {"every": 1.5}, {"sample": True}, {"rises": 0}, {"error_bound": 0}, {"residual_bound": math.nan},
     {"error_bound": "10"}, {"fallback": "onebit"}],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(given: dict) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(given))}="):
        CompressionMonitor(**given)


def test_the_line_names_the_worst() -> None:
    one = CompressionMetrics(4, "onebit", 1_000_000, 50_000, error=0.5, residual=3.0, fault="")
    line = report({"allreduce.a": one, "allreduce.b": replace(one, payload_bytes=30_000, error=0.7, residual=math.nan)})
    assert line == (
        "compressed gradients: 2, 2 MB as 0.08 MB (25 times smaller); largest vNMSE 0.7 (b); "
        "largest |residual| / |gradient| 3 (a)"
    )
    assert report({"allreduce.a": replace(one, residual=0.0)}).endswith("; no |residual| / |gradient|")

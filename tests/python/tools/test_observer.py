"""What `casync bench` makes of a session's meters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from casync.observe.metrics import GradientMetrics, Histogram, Metrics, Pool, Queues, Transport
from casync.observe.step_profile import Gradient, seen
from casync.plan.plans import GradientPlan

PLANS = {
    "allreduce.fc": GradientPlan(tensor="float32 (10, 512)"),
    "allreduce.bias": GradientPlan(tensor="float64 (10)"),
    "allreduce.loss": GradientPlan(tensor="float32 ()"),
    "allreduce.counts": GradientPlan(tensor="int64 (2)"),
    "reducescatter.shard": GradientPlan(tensor="float32 (8)"),
}


def told(steps: int, took: float, waited: float, gradients: Mapping[str, tuple[int, float]]) -> Metrics:
    """A snapshot: steps that are over, their times in all, and by gradient its operations and ready times in all."""
    of = {
        name: GradientMetrics(operations, 0.0, 0.0, ready, 0, 0, 0.0) for name, (operations, ready) in gradients.items()
    }
    return Metrics(
        rank=0,
        size=2,
        steps=steps + 1,
        step_seconds=Histogram((), (steps,), took),
        exposed_seconds=Histogram((), (steps,), waited),
        waited_seconds=waited,
        failed_operations=0,
        codecs={},
        gradients=of,
        queues=Queues(0, 0, 0, 0, 0),
        pool=Pool(0, 0, 0, 0),
        transport=Transport(0, 0, 0, 0),
        lateness={},
        rounds={},
        compression={},
    )


def test_only_what_happened_in_between_counts() -> None:
    before = told(2, 10.0, 8.0, {"allreduce.fc": (2, 6.0), "allreduce.bias": (2, 2.0)})
    after = told(6, 14.0, 9.0, {"allreduce.fc": (6, 7.2), "allreduce.bias": (6, 2.4)})
    found = seen(before, after, PLANS)
    assert found.computes_s == pytest.approx(0.75), "4 s for four steps, in one of which it waited"
    first, second = found.gradients
    assert first == Gradient("bias", (10,), "float64", first.ready_s) and first.ready_s == pytest.approx(0.1)
    assert second == Gradient("fc", (10, 512), "float32", second.ready_s) and second.ready_s == pytest.approx(0.3)


def test_only_floats_that_are_allreduced_in_each_step_are_gradients() -> None:
    before = told(0, 0.0, 0.0, {})
    done = {"allreduce.fc": (7, 0.0), "allreduce.loss": (1, 0.0), "allreduce.counts": (7, 0.0)}
    after = told(7, 7.0, 0.0, {**done, "reducescatter.shard": (7, 0.0), "allreduce.unknown": (7, 0.0)})
    assert [one.name for one in seen(before, after, PLANS).gradients] == ["fc"]


def test_a_gradient_may_be_half_in_the_step_at_either_end() -> None:
    after = told(7, 7.0, 0.0, {"allreduce.fc": (6, 0.0), "allreduce.loss": (5, 0.0)})
    assert [one.name for one in seen(told(0, 0.0, 0.0, {}), after, PLANS).gradients] == ["fc"]


def test_a_scalar_has_no_extents() -> None:
    after = told(7, 7.0, 8.0, {"allreduce.loss": (7, 0.0)})
    found = seen(told(0, 0.0, 0.0, {}), after, PLANS)
    assert found.gradients[0].shape == () and found.computes_s == 0.0, "it never computes less than not at all"

"""The plan of a whole model, from costs that are given: figures of docs/internals/planner.md."""

import math

import pytest

from casync import _core
from casync.bench.reference_models import MODELS

BACKWARD_S = 0.1


def gradients_of(model):
    """Backward makes the last gradient first, in a time that grows with its elements."""
    shapes = MODELS[model]()[::-1]
    total = sum(math.prod(shape) for shape in shapes)
    ready, made = [], 0
    for shape in shapes:
        made += math.prod(shape)
        ready.append((shape[0], math.prod(shape) // shape[0], BACKWARD_S * made / total))
    return ready


def plan(model, hosts, ranks, rate, compression):
    """Hosts of several ranks; `rate` in bit/s between them, 100 Gbit/s inside. What codecs cost is a guess."""
    return _core.plan_model(
        gradients=gradients_of(model),
        host_of=[rank // ranks for rank in range(hosts * ranks)],
        inter=(25e-6, 8 / rate, 5e-6),
        intra=(10e-6, 0.08e-9, 2e-6),
        codecs={},
        device_codecs={},
        copy_s_per_byte=0.08e-9,
        processors=4,
        on_device=False,
        compression=compression,
    )


def test_the_example_of_the_manual():
    found = plan("vgg19", 2, 2, 25e9, "auto(onebit)")
    seconds = [found[name] for name in ("descent_s", "options_s", "bound_s")]
    assert [f"{1e3 * one:.1f}" for one in seconds] == ["169.8", "149.8", "149.8"]
    assert any(way["topology"].startswith("phases(") for way in found["ways"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), (4, 2), (4, 1), (2, 8)])
@pytest.mark.parametrize("rate", [1e9, 25e9])
def test_it_is_never_worse_than_the_descent_nor_under_the_bound(model, hosts, ranks, rate):
    found = plan(model, hosts, ranks, rate, "auto(onebit, fp16)")
    assert found["bound_s"] <= found["step_s"] * (1 + 1e-9)
    assert found["step_s"] <= found["descent_s"] <= min(found["alone_s"], *found["uniform"].values())
    assert found["bookings"] < 7_500_000, "three million for each search, and what candidates need alone"
    assert len(found["ways"]) == len(gradients_of(model))

"""The suite of all adaptors: each test runs once for each framework, of which it knows what its binding says.

Run one framework's: `casyncrun -np 2 python tools/mpi_pytest.py numpy-2 tests/python/adaptor -k numpy`.
"""

import os
from typing import Any

import pytest

from support.bindings import Binding, binding_of, is_there, tested
from support.ranks import pytest_runtest_call, rank, rng, several, size, world

__all__ = ["pytest_runtest_call", "rank", "rng", "several", "size", "world"]


def framework(name: str) -> Any:
    missing = pytest.mark.skipif(not is_there(name), reason=f"{name} is not installed")
    return pytest.param(name, marks=missing)


OF_THE_CORE = ("adasum", "cycles", "determinism", "feedback_bits", "loss_scale", "metrics", "nonfinite", "plans",
               "process_sets", "rules", "session", "timeline", "worlds")  # fmt: skip
"""Files of tests of what no adaptor has a part in."""
FOR_ALL = ("numpy", "torch", "standin", "cuda")
"""The adaptors with which those run, in the memory of the host and on a device. `make nightly` runs them with all.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("CASYNC_TEST_EVERYTHING"):
        return
    left = [item for item in items if is_left(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def is_left(item: pytest.Item) -> bool:
    if item.path.parent.name != "adaptor" or item.path.stem.removeprefix("test_") not in OF_THE_CORE:
        return False
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return parameters.get("adaptor", FOR_ALL[0]) not in FOR_ALL


@pytest.fixture(scope="session", params=map(framework, tested()), ids=tested())
def adaptor(request: pytest.FixtureRequest) -> Binding:
    """For the whole session, so that pytest runs all tests of one framework, and then those of the next."""
    return binding_of(request.param)


@pytest.fixture
def hvd(adaptor: Binding) -> Any:
    return adaptor.hvd


@pytest.fixture
def in_place_forms(adaptor: Binding) -> None:
    """For tests of `allreduce_` and the like."""
    if not adaptor.in_place:
        pytest.skip(f"the values of tensors of {adaptor.name} do not change")

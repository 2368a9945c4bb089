"""The suite of all adaptors: each test runs once for each framework, of which it knows what its binding says.

Run one framework's: `casyncrun -np 2 python tools/mpi_pytest.py numpy-2 tests/python/adaptor -k numpy`.
"""

from typing import Any

import pytest

from support.bindings import Binding, binding_of, is_there, tested
from support.ranks import pytest_runtest_call, rank, rng, several, size, world

__all__ = ["pytest_runtest_call", "rank", "rng", "several", "size", "world"]


def framework(name: str) -> Any:
    missing = pytest.mark.skipif(not is_there(name), reason=f"{name} is not installed")
    return pytest.param(name, marks=missing)


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

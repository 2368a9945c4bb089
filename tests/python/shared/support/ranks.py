"""Tests that several ranks run together: what the conftest of a folder of such tests takes from here.

Every rank runs the same tests in the same order; each test gets a session of its own. A test passes if it passes on all
ranks: they meet at its end, and a rank whose test failed aborts the session, so that the others stop waiting for it and
fail with its text. The next test starts afresh. No framework is imported.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pytest

from casync.session import default
from casync.tensors.signature import OpKind, OpSignature

LIMITS = {"timeout_s": 20.0, "stall_warning_s": 10.0}
"""Settings for init(): timeouts well below pytest's own, so that what hangs is reported by name."""


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """A session of all ranks."""
    default.init(**LIMITS)
    yield
    default.shutdown()


def _meet() -> None:
    owner = default.session()
    registration = owner.register(OpSignature("barrier", OpKind.BARRIER, "uint8", (0,)))
    owner.synchronize(owner.submit(registration, 0, 0, None, wake=False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    try:
        outcome = yield
        if default.is_initialized():
            _meet()
        return outcome
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        if default.is_initialized():
            rank = default.session().rank
            for session in default.process_sets().sessions.values():
                session.abort(f"{item.nodeid} failed on rank {rank}: {type(error).__name__}: {error}")
        raise


@pytest.fixture
def rank() -> int:
    return default.session().rank


@pytest.fixture
def size() -> int:
    return default.session().size


@pytest.fixture
def several(size: int) -> None:
    """For tests of ranks that differ from each other."""
    if size < 2:
        pytest.skip("one rank has no peer to differ from")


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers on all ranks: a test draws every rank's tensors and takes its own."""
    return np.random.default_rng(0)

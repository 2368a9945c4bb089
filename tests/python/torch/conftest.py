"""One process: a world of one, opened for each test that asks for it."""

import casync.torch as hvd
import pytest


@pytest.fixture
def world():
    hvd.init(timeout_s=20.0)
    yield
    hvd.shutdown()

"""Whole programs through Accelerate."""

from importlib.util import find_spec

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "torch"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]


@pytest.mark.parametrize("cell", cells_of("accelerate"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])

"""Whole programs through Lightning."""

from importlib.util import find_spec

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "lightning"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
]


@pytest.mark.parametrize("cell", cells_of("lightning"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])

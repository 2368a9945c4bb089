"""Whole programs through LocalSGD with a round after each step."""

import pytest

from tests.python.programs.check import asked, cells_of, check

FAMILY = "torch"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("cell", cells_of("local"))
def test_program(cell, outcomes):
    check(cell, outcomes[asked(cell, FAMILY)])
